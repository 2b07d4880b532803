import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * The unmodified Apache client, driven from the tests. One fact a line on standard output, fields
 * separated by tabs, the first one says what the line is.
 *
 *   send  NAMESRV TOPIC COUNT    COUNT messages each: sync, async, oneway, and one batch
 *   read  NAMESRV TOPIC COUNT    assign all queues, seek to the beginning, poll COUNT messages
 *   wait  NAMESRV TOPIC          seek every queue to its end, say "ready", poll one message that comes later
 *   seek  NAMESRV TOPIC QUEUE OFFSET   the first message from that offset on
 */
public class Interop {
    private static void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            if (line.length() > 0) {
                line.append('\t');
            }
            line.append(field);
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static Message message(String topic, String kind, int number) {
        byte[] body = ("java " + kind + " " + number + " \u4e2d").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, "tag-" + (number % 2), "key-" + kind + "-" + number, body);
        message.putUserProperty("number", Integer.toString(number));
        message.setFlag(number);
        return message;
    }

    private static void sent(String kind, SendResult result) {
        say(kind, result.getSendStatus(), result.getMsgId(), result.getOffsetMsgId(),
            result.getMessageQueue().getQueueId(), result.getQueueOffset());
    }

    private static void send(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            sent("sync", producer.send(message(topic, "sync", i)));
        }
        CountDownLatch pending = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer.send(message(topic, "async", i), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    sent("async", result);
                    pending.countDown();
                }

                @Override public void onException(Throwable problem) {
                    say("error", problem);
                    pending.countDown();
                }
            });
        }
        pending.await(30, TimeUnit.SECONDS);
        for (int i = 0; i < count; i++) {
            producer.sendOneway(message(topic, "oneway", i));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            batch.add(message(topic, "batch", i));
        }
        sent("batch", producer.send(batch));
        byte[] large = new byte[100_000];
        Message compressed = new Message(topic, "large", "key-large-0", large);
        sent("large", producer.send(compressed));
        producer.shutdown();
        say("done");
    }

    /** Send until killed; the client retries as long as a switch of brokers takes, or for timeout.ms. */
    private static void keepSending(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setPollNameServerInterval(500);
        producer.setSendMsgTimeout(Integer.getInteger("timeout.ms", 60_000));
        producer.setRetryTimesWhenSendFailed(1_000_000);
        producer.start();
        for (int i = 0; ; i++) {
            byte[] body = Integer.toString(i).getBytes(StandardCharsets.UTF_8);
            try {
                sent(Integer.toString(i), producer.send(new Message(topic, body)));
            } catch (MQClientException | MQBrokerException | RemotingException failed) {
                say(i, "failed");
            }
            Thread.sleep(2);
        }
    }

    private static DefaultLitePullConsumer consumer(String namesrv) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("java-reader");
        consumer.setNamesrvAddr(namesrv);
        consumer.setAutoCommit(false);
        consumer.start();
        return consumer;
    }

    private static void received(MessageExt message) {
        boolean large = message.getBody().length > 1000;
        say("message", message.getQueueId(), message.getQueueOffset(), message.getMsgId(),
            ((MessageClientExt) message).getOffsetMsgId(), message.getTags(),
            message.getKeys(), message.getFlag(), String.valueOf(message.getUserProperty("number")),
            large ? "bytes:" + message.getBody().length : new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private static void poll(DefaultLitePullConsumer consumer, int count) {
        long deadline = System.currentTimeMillis() + 30_000;
        int seen = 0;
        while (seen < count && System.currentTimeMillis() < deadline) {
            for (MessageExt message : consumer.poll(500)) {
                received(message);
                seen++;
            }
        }
    }

    public static void main(String[] args) throws Exception {
        String namesrv = args[1];
        String topic = args[2];
        if (args[0].equals("send")) {
            send(namesrv, topic, Integer.parseInt(args[3]));
            System.exit(0);
        }
        if (args[0].equals("keep sending")) {
            keepSending(namesrv, topic);
        }
        DefaultLitePullConsumer consumer = consumer(namesrv);
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        if (args[0].equals("seek")) {
            int wanted = Integer.parseInt(args[3]);
            queues.removeIf(queue -> queue.getQueueId() != wanted);
        }
        if (args[0].equals("read")) {
            // Without a seek: what was asked for before it would be delivered twice.
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        }
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            switch (args[0]) {
                case "read": break;
                case "wait": consumer.seekToEnd(queue); break;
                default:
                    // What was asked for before the seek would be delivered after it.
                    while (!consumer.poll(1500).isEmpty()) { }
                    consumer.seek(queue, Long.parseLong(args[4]));
            }
        }
        if (args[0].equals("wait")) {
            consumer.poll(1500);
            say("ready");
        }
        poll(consumer, args[0].equals("read") ? Integer.parseInt(args[3]) : 1);
        consumer.shutdown();
        say("done");
        System.exit(0);
    }
}
