import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A load program with the unmodified push consumer of rocketmq-client. It has the same arguments
 * and output as push_lane.py.
 *
 * <pre>java JavaConsume concurrent|orderly NAMESERVER GROUP BATCH WARM_TOPIC WARM_MESSAGES TOPIC MESSAGES
 *java JavaConsume deliver NAMESERVER GROUP TOPIC SIZE RATE SECONDS WARM_SECONDS</pre>
 *
 * It prints one line of key=value. CPU time is that of this process, from the first handled message
 * to the last.
 */
public class JavaConsume {
    private static final long PATIENCE_SECONDS = 120;
    private static final int EXTRA_WATCHED_MS = 200;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** Counts handled messages, and records the times of the first and the last one. */
    private static final class Count {
        private final long wanted;
        private final AtomicLong handled = new AtomicLong();
        private final CountDownLatch done = new CountDownLatch(1);
        private volatile long began;
        private volatile long beganCpu;
        private volatile long ended;
        private volatile long endedCpu;

        private Count(long wanted) {
            this.wanted = wanted;
        }

        private void add(int messages) {
            long before = handled.getAndAdd(messages);
            if (before == 0) {
                beganCpu = SYSTEM.getProcessCpuTime();
                began = System.nanoTime();
            }
            if (before < wanted && before + messages >= wanted) {
                ended = System.nanoTime();
                endedCpu = SYSTEM.getProcessCpuTime();
                done.countDown();
            }
        }
    }

    private static DefaultMQPushConsumer consumer(String nameserver, String group, String topic)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static Count consume(
            boolean orderly, String nameserver, String group, int batch, String topic, long messages)
            throws Exception {
        Count count = new Count(messages);
        DefaultMQPushConsumer consumer = consumer(nameserver, group, topic);
        consumer.setConsumeMessageBatchMaxSize(batch);
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (handed, context) -> {
                count.add(handed.size());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (handed, context) -> {
                count.add(handed.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        if (!count.done.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(
                    "only " + count.handled.get() + " of " + messages + " messages of " + topic + " came");
        }
        Thread.sleep(EXTRA_WATCHED_MS);
        consumer.shutdown();
        return count;
    }

    private static void consume(String[] words) throws Exception {
        boolean orderly = words[0].equals("orderly");
        int batch = Integer.parseInt(words[3]);
        consume(orderly, words[1], words[2] + "-warm", batch, words[4], Long.parseLong(words[5]));
        Count count = consume(orderly, words[1], words[2], batch, words[6], Long.parseLong(words[7]));
        double seconds = (count.ended - count.began) / 1e9;
        System.out.printf("n=%d secs=%.4f per_s=%.1f cpu_us_per=%.4f extra=%d%n",
                count.wanted, seconds, count.wanted / seconds,
                (count.endedCpu - count.beganCpu) / 1e3 / count.wanted,
                count.handled.get() - count.wanted);
    }

    private static void deliver(String[] words) throws Exception {
        String nameserver = words[1];
        String topic = words[3];
        double rate = Double.parseDouble(words[5]);
        int counted = (int) (rate * Double.parseDouble(words[6]));
        int warm = (int) (rate * Double.parseDouble(words[7]));
        byte[] filler = new byte[Integer.parseInt(words[4])];
        Arrays.fill(filler, (byte) 'x');
        long[] latencies = new long[warm + counted];
        AtomicInteger came = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(warm + counted);
        DefaultMQPushConsumer consumer = consumer(nameserver, words[2], topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (handed, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : handed) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                latencies[(int) body.getLong(8)] = now - body.getLong(0);
                came.incrementAndGet();
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(words[2] + "-producer");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        consumer.start();
        long cpu = 0;
        long due = System.nanoTime();
        for (int number = 0; number < latencies.length; number++) {
            if (number == warm) {
                cpu = SYSTEM.getProcessCpuTime();
            }
            due += (long) (1e9 / rate);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            byte[] body = filler.clone();
            ByteBuffer.wrap(body).putLong(0, System.nanoTime()).putLong(8, number);
            producer.send(new Message(topic, body));
        }
        if (!all.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(all.getCount() + " messages did not come");
        }
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        long[] sorted = Arrays.copyOfRange(latencies, warm, latencies.length);
        Arrays.sort(sorted);
        System.out.printf("n=%d p50_us=%.1f p99_us=%.1f cpu_us_per=%.4f extra=%d%n", counted,
                sorted[counted / 2] / 1e3, sorted[counted * 99 / 100] / 1e3, cpu / 1e3 / counted,
                came.get() - latencies.length);
        consumer.shutdown();
        producer.shutdown();
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("deliver")) {
            deliver(words);
        } else {
            consume(words);
        }
        System.exit(0);
    }
}
