import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * NAMESERVER TOPIC: producer and consumer with message trace. Sends "plain", which the consumer
 * rejects, a transaction that is committed, and with 5.x a timer that is recalled; prints their
 * ids and "done", and goes on until it is killed.
 */
public class Traces {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        System.setProperty("com.rocketmq.recall.default.trace.enable", "true");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-billing", true, null);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMaxReconsumeTimes(0);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            "plain".equals(messages.get(0).getTags())
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        TransactionMQProducer producer = new TransactionMQProducer(null, "java-shop", null, true, null);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        consumer.start();
        producer.start();
        Message plain = message(topic, "plain");
        plain.setKeys("o-1 o-2");
        System.out.println("plain\t" + producer.send(plain).getMsgId());
        Message half = message(topic, "half");
        System.out.println("half\t" + producer.sendMessageInTransaction(half, null).getMsgId());
        recall(producer, message(topic, "recalled"));
        System.out.println("done");
        // A shutdown loses records: they go out behind sends and handlers, 5.x's every 5 seconds.
        Thread.currentThread().join();
    }

    private static void recall(DefaultMQProducer producer, Message message) throws Exception {
        Method recall;
        try {
            recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException error) {
            return; // 4.9 has no recalls
        }
        Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, 60000L);
        SendResult result = producer.send(message);
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
        recall.invoke(producer, message.getTopic(), handle);
        System.out.println("recalled\t" + result.getMsgId());
    }

    private static Message message(String topic, String tag) {
        return new Message(topic, tag, "tea".getBytes(StandardCharsets.UTF_8));
    }
}
