import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Requests and replies of the unmodified Apache client. One fact a line on standard output, fields
 * separated by tabs.
 *
 *   ask    NAMESRV TOPIC COUNT   COUNT requests each: one after the other, at once, and one large one
 *   alone  NAMESRV TOPIC         a request that nobody answers
 *   answer NAMESRV TOPIC         say "ready", then answer every request with its body behind "re: "
 */
public class Requests {
    private static final long PATIENCE_MS = 30_000;

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

    private static String text(Message message) {
        return message.getBody().length > 1000
            ? "bytes:" + message.getBody().length : new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static DefaultMQProducer producer(String namesrv, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        return producer;
    }

    private static Message request(String topic, String body) {
        return new Message(topic, "asked", body.getBytes(StandardCharsets.UTF_8));
    }

    private static void replied(Message reply) {
        say("reply", text(reply), reply.getUserProperty("number"));
    }

    private static void ask(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            replied(producer.request(request(topic, "sync " + i), PATIENCE_MS));
        }
        CountDownLatch pending = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer.request(request(topic, "async " + i), new RequestCallback() {
                @Override public void onSuccess(Message reply) {
                    replied(reply);
                    pending.countDown();
                }

                @Override public void onException(Throwable problem) {
                    say("error", problem);
                    pending.countDown();
                }
            }, PATIENCE_MS);
        }
        pending.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        replied(producer.request(request(topic, "x".repeat(100_000)), PATIENCE_MS));
    }

    private static void alone(DefaultMQProducer producer, String topic) throws Exception {
        try {
            // Enough for the send by a client that has just started on a busy machine.
            replied(producer.request(request(topic, "alone"), 3000));
        } catch (RequestTimeoutException nobody) {
            say("timeout", nobody.getResponseCode());
        }
    }

    private static void answer(DefaultMQProducer producer, String namesrv, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-answering");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                try {
                    byte[] body = ("re: " + new String(message.getBody(), StandardCharsets.UTF_8))
                        .getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body);
                    reply.putUserProperty("number", "7");
                    say("answered", producer.send(reply).getSendStatus());
                } catch (Exception problem) {
                    say("error", problem);
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready", topic);
        Thread.sleep(Long.MAX_VALUE);
    }

    public static void main(String[] args) {
        try {
            run(args);
            say("done");
            System.exit(0);
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        DefaultMQProducer producer = producer(args[1], "java-" + args[0]);
        switch (args[0]) {
            case "ask": ask(producer, args[2], Integer.parseInt(args[3])); break;
            case "alone": alone(producer, args[2]); break;
            default: answer(producer, args[1], args[2]);
        }
        producer.shutdown();
    }
}
