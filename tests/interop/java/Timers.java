import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * NAMESERVER TOPIC DELAY_MS...: sends a message for each delay, then one that it recalls. By
 * reflection, since 4.9 has no timers and this file is compiled for it, too.
 */
public class Timers {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("timers");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        try {
            Method deliverAt = Message.class.getMethod("setDeliverTimeMs", long.class);
            Method delayMs = Message.class.getMethod("setDelayTimeMs", long.class);
            Method handleOf = SendResult.class.getMethod("getRecallHandle");
            Method recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
            for (int i = 2; i < arguments.length; i++) {
                long delay = Long.parseLong(arguments[i]);
                Message message = message(arguments[1], arguments[i]);
                long due = System.currentTimeMillis() + delay;
                if (i % 2 == 0) {
                    deliverAt.invoke(message, due);
                } else {
                    delayMs.invoke(message, delay);
                }
                SendResult result = producer.send(message);
                System.out.println("sent\t" + arguments[i] + "\t" + due + "\t" + result.getMsgId());
            }
            Message message = message(arguments[1], "recalled");
            delayMs.invoke(message, 3000L);
            SendResult result = producer.send(message);
            Object id = recall.invoke(producer, arguments[1], handleOf.invoke(result));
            System.out.println("recalled\t" + result.getMsgId() + "\t" + id);
            System.out.println("done");
        } finally {
            producer.shutdown();
        }
    }

    private static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }
}
