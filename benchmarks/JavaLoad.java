import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * A load program with the unmodified producer of rocketmq-client.
 *
 * <pre>java JavaLoad sync|async|mixed NAMESERVER TOPIC THREADS|IN_FLIGHT SIZE SECONDS WARM_SECONDS PID</pre>
 *
 * mixed: async, and three groups of push consumers that commit ten times a second; the messages they
 * receive are counted too, latencies are those of the sends. PID is the broker's process, whose CPU
 * time is measured while sends are counted. It prints one line of key=value, like loadgen.
 */
public class JavaLoad {
    private static final int MAX_LATENCIES = 1 << 23;
    private static final double TICKS_PER_SECOND = 100;

    private final DefaultMQProducer producer = new DefaultMQProducer("bench_" + System.nanoTime());
    private final Message message;
    private final long begins;
    private final long ends;
    private final int parallel;
    private final long[] latencies = new long[MAX_LATENCIES];
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicLong delivered = new AtomicLong();
    private final AtomicLong errors = new AtomicLong();

    private JavaLoad(String[] arguments) throws Exception {
        byte[] body = new byte[Integer.parseInt(arguments[4])];
        Arrays.fill(body, (byte) 'x');
        message = new Message(arguments[2], body);
        parallel = Integer.parseInt(arguments[3]);
        producer.setNamesrvAddr(arguments[1]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(1 << 22);
        producer.start();
        sendUntilAcknowledged();
        begins = System.nanoTime() + (long) (Double.parseDouble(arguments[6]) * 1e9);
        ends = begins + (long) (Double.parseDouble(arguments[5]) * 1e9);
    }

    /** The first send creates the topic; its route takes a moment to appear. */
    private void sendUntilAcknowledged() throws Exception {
        for (int attempt = 1;; attempt++) {
            try {
                producer.send(copy());
                return;
            } catch (Exception problem) {
                if (attempt == 50) {
                    throw problem;
                }
                Thread.sleep(100);
            }
        }
    }

    /** Creates a new message for each send, because the producer adds properties to it. */
    private Message copy() {
        return new Message(message.getTopic(), message.getBody());
    }

    private void acknowledged(long started, SendResult result) {
        if (started < begins) {
            return;
        }
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            errors.incrementAndGet();
        }
        int at = count.getAndIncrement();
        if (at < MAX_LATENCIES) {
            latencies[at] = System.nanoTime() - started;
        }
    }

    private void failed(Throwable problem) {
        if (errors.incrementAndGet() <= 3) {
            problem.printStackTrace();
        }
    }

    private void sync() throws Exception {
        Thread[] threads = new Thread[parallel];
        for (int i = 0; i < parallel; i++) {
            threads[i] = new Thread(() -> {
                for (long started = System.nanoTime(); started < ends; started = System.nanoTime()) {
                    try {
                        acknowledged(started, producer.send(copy()));
                    } catch (Exception problem) {
                        failed(problem);
                    }
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void async() throws Exception {
        Semaphore free = new Semaphore(parallel);
        while (System.nanoTime() < ends) {
            free.acquire();
            long started = System.nanoTime();
            producer.send(copy(), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    free.release();
                    acknowledged(started, result);
                }

                @Override
                public void onException(Throwable problem) {
                    free.release();
                    failed(problem);
                }
            });
        }
        free.acquire(parallel);
    }

    /** Starts three groups that read the messages sent from now on. */
    private void consume(String nameserver) throws Exception {
        for (int group = 0; group < 3; group++) {
            DefaultMQPushConsumer consumer =
                    new DefaultMQPushConsumer("bench_" + group + "_" + System.nanoTime());
            consumer.setNamesrvAddr(nameserver);
            consumer.setPullBatchSize(32);
            consumer.setConsumeMessageBatchMaxSize(32);
            consumer.setPersistConsumerOffsetInterval(100);
            consumer.subscribe(message.getTopic(), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                long now = System.nanoTime();
                if (begins <= now && now < ends) {
                    delivered.addAndGet(messages.size());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
    }

    private static double cpuSeconds(String pid) {
        try {
            String stat = new String(Files.readAllBytes(Path.of("/proc", pid, "stat")));
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / TICKS_PER_SECOND;
        } catch (Exception problem) {
            return 0;
        }
    }

    private void report(String mode, double cpu) {
        int kept = Math.min(count.get(), MAX_LATENCIES);
        long all = count.get() + delivered.get();
        double seconds = (ends - begins) / 1e9;
        Arrays.sort(latencies, 0, kept);
        System.out.printf(
                "mode=java-%s n=%d secs=%.3f per_s=%.1f p50_us=%.1f p99_us=%.1f p999_us=%.1f errs=%d"
                        + " cpu_us_per=%.3f cpu_cores=%.3f%n",
                mode, all, seconds, all / seconds, quantile(kept, .5),
                quantile(kept, .99), quantile(kept, .999), errors.get(),
                all == 0 ? 0 : cpu / all * 1e6, cpu / seconds);
    }

    private double quantile(int kept, double share) {
        return kept == 0 ? 0 : latencies[(int) (kept * share)] / 1e3;
    }

    public static void main(String[] arguments) throws Exception {
        JavaLoad load = new JavaLoad(arguments);
        double[] cpu = new double[1];
        Thread watch = new Thread(() -> {
            try {
                Thread.sleep(Math.max(0, (load.begins - System.nanoTime()) / 1_000_000));
            } catch (InterruptedException stopped) {
                return;
            }
            cpu[0] = cpuSeconds(arguments[7]);
        });
        watch.start();
        if (arguments[0].equals("mixed")) {
            load.consume(arguments[1]);
        }
        if (arguments[0].equals("sync")) {
            load.sync();
        } else {
            load.async();
        }
        load.report(arguments[0], cpuSeconds(arguments[7]) - cpu[0]);
        System.exit(0);
    }
}
