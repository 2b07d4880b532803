import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A load program with the unmodified push consumer of rocketmq-client, which handles messages
 * concurrently.
 *
 * <pre>java JavaConsume NAMESERVER GROUP WARM_TOPIC WARM_MESSAGES TOPIC MESSAGES</pre>
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

    private static Count consume(String nameserver, String group, String topic, long messages)
            throws Exception {
        Count count = new Count(messages);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (handed, context) -> {
            count.add(handed.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!count.done.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(
                    "only " + count.handled.get() + " of " + messages + " messages of " + topic + " came");
        }
        Thread.sleep(EXTRA_WATCHED_MS);
        consumer.shutdown();
        return count;
    }

    public static void main(String[] words) throws Exception {
        consume(words[0], words[1] + "-warm", words[2], Long.parseLong(words[3]));
        Count count = consume(words[0], words[1], words[4], Long.parseLong(words[5]));
        double seconds = (count.ended - count.began) / 1e9;
        System.out.printf("n=%d secs=%.4f per_s=%.1f cpu_us_per=%.4f extra=%d%n",
                count.wanted, seconds, count.wanted / seconds,
                (count.endedCpu - count.beganCpu) / 1e3 / count.wanted,
                count.handled.get() - count.wanted);
        System.exit(0);
    }
}
