import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/** A signed producer and consumer: name server, access key, secret key, topic, group, denied topic. */
public class Signed {
    private static DefaultMQProducer producer(String nameServer, RPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("signed", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private static void denied(DefaultMQProducer producer, String topic) throws Exception {
        try {
            producer.send(new Message(topic, "x".getBytes()));
            System.out.println("sent\t" + topic);
        } catch (Exception error) {
            MQBrokerException cause = (MQBrokerException) (error.getCause() == null ? error : error.getCause());
            System.out.println("denied\t" + cause.getResponseCode() + "\t" + cause.getErrorMessage());
        }
    }

    public static void main(String[] arguments) throws Exception {
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        DefaultMQProducer good = producer(arguments[0], hook);
        int count = 20;
        for (int i = 0; i < count; i++) {
            good.send(new Message(arguments[3], "T", "k" + i, ("m" + i).getBytes()));
        }
        good.send(Collections.singletonList(new Message(arguments[3], "T", "last".getBytes())));
        denied(good, arguments[5]);
        DefaultMQProducer stranger = producer(arguments[0], null);
        denied(stranger, arguments[3]);
        CountDownLatch latch = new CountDownLatch(count + 1);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(arguments[4], hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[3], "T");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> latch.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("received\t" + latch.await(60, TimeUnit.SECONDS));
        consumer.shutdown();
        good.shutdown();
        stranger.shutdown();
        System.out.println("done");
        System.exit(0);
    }
}
