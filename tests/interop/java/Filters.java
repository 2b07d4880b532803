import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consumers of the unmodified Apache client that filter by properties. One fact a line, fields
 * separated by tabs.
 *
 *   push NAMESRV TOPIC GROUP COUNT EXPRESSION   say "ready", then the bodies of COUNT messages
 *   lite NAMESRV TOPIC GROUP COUNT EXPRESSION   the same with the lite pull consumer
 *   pull NAMESRV TOPIC GROUP COUNT EXPRESSION   the same with the pull consumer, queue by queue
 */
public class Filters {
    private static void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() > 0 ? "\t" : "").append(field);
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static void received(MessageExt message) {
        say("message", new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private static void push(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[3]);
        CountDownLatch left = new CountDownLatch(Integer.parseInt(args[4]));
        consumer.setNamesrvAddr(args[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], MessageSelector.bySql(args[5]));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                received(message);
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready", "");
        left.await(40, TimeUnit.SECONDS);
        Thread.sleep(500);
        consumer.shutdown();
    }

    private static void lite(String[] args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[3]);
        consumer.setNamesrvAddr(args[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], MessageSelector.bySql(args[5]));
        consumer.start();
        say("ready", "");
        long deadline = System.currentTimeMillis() + 40_000;
        int left = Integer.parseInt(args[4]);
        while (left > 0 && System.currentTimeMillis() < deadline) {
            for (MessageExt message : consumer.poll(500)) {
                received(message);
                left--;
            }
        }
        consumer.shutdown();
    }

    /** The client learns from a heartbeat, after its first pull, whether a broker can filter. */
    @SuppressWarnings("deprecation")
    private static PullResult patiently(
        DefaultMQPullConsumer consumer, MessageQueue queue, MessageSelector selector, long offset
    ) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return consumer.pull(queue, selector, offset, 32);
            } catch (MQClientException problem) {
                if (attempt == 20 || !problem.getMessage().contains("does not upgrade")) {
                    throw problem;
                }
                Thread.sleep(500);
            }
        }
    }

    @SuppressWarnings("deprecation")
    private static void pull(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args[3]);
        consumer.setNamesrvAddr(args[1]);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.start();
        say("ready", "");
        MessageSelector selector = MessageSelector.bySql(args[5]);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args[2])) {
            long end = consumer.maxOffset(queue);
            for (long offset = 0; offset < end; ) {
                PullResult result = patiently(consumer, queue, selector, offset);
                List<MessageExt> found = result.getMsgFoundList();
                if (found != null) {
                    found.forEach(Filters::received);
                }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
    }

    public static void main(String[] args) throws Exception {
        try {
            switch (args[0]) {
                case "push": push(args); break;
                case "lite": lite(args); break;
                default: pull(args);
            }
        } catch (MQClientException problem) {
            Throwable cause = problem.getCause() == null ? problem : problem.getCause();
            String text = problem.getMessage() + " " + cause.getMessage();
            say("error", problem.getResponseCode(), text.replace('\n', ' ').replace('\t', ' '));
        }
        say("done");
        System.exit(0);
    }
}
