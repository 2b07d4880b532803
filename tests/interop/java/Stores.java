import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What the tests of carried stores need of the unmodified Apache client, in one run: commands one
 * after the other, a "/" between them. One fact a line on standard output, fields separated by tabs.
 *
 *   write TOPIC                        messages of every kind that waits for nobody
 *   work TOPIC GROUP                   a group consumes some, fails at some, and leaves; some more come
 *   deal TOPIC GROUP                   transactions: two committed, two rolled back, two never ended
 *   settle GROUP                       be there until the broker has asked about two, and commit them
 *   late TOPIC LEVEL COUNT             delayed messages
 *   await TOPIC COUNT                  until it has so many messages
 *   read TOPIC...                      every message of the topics, with all its fields
 *   consume TOPIC GROUP COUNT          as a member of the group, until it has got so many
 *   find TOPIC KEY                     by a key
 *   send TOPIC BODY COUNT              plain messages, over all queues in turn
 */
@SuppressWarnings("deprecation") // the plain pull consumer has no heir that reads to the end
public class Stores {
    private static final long PATIENCE_MS = 60_000;

    private final String namesrv;

    private Stores(String namesrv) {
        this.namesrv = namesrv;
    }

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

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    private static String host(Object address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return hex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    /** A message as the consumer sees it, without what the client itself adds. */
    private static void tell(MessageExt message) throws Exception {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove("MIN_OFFSET");
        properties.remove("MAX_OFFSET");
        StringBuilder text = new StringBuilder();
        properties.forEach((name, value) -> text.append(name).append('\1').append(value).append('\2'));
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        say("message", message.getTopic(), message.getQueueId(), message.getQueueOffset(),
            message.getCommitLogOffset(), message.getFlag(), message.getSysFlag() & ~1,
            message.getReconsumeTimes(), message.getBornTimestamp(), host(message.getBornHost()),
            message.getStoreTimestamp(), host(message.getStoreHost()),
            message.getPreparedTransactionOffset(), hex(utf8(text.toString())),
            hex(MessageDigest.getInstance("SHA-256").digest(body)));
    }

    private static void await(CountDownLatch calls) {
        try {
            calls.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.start();
        return producer;
    }

    private void write(String topic) throws Exception {
        for (String kind : new String[] {"ZLIB", "LZ4", "ZSTD"}) {
            System.setProperty("rocketmq.message.compressType", kind);
            DefaultMQProducer producer = producer("compressing-" + kind);
            byte[] large = new byte[50_000];
            large[7] = (byte) kind.charAt(0);
            producer.send(new Message(topic, kind, "large " + kind, large));
            producer.shutdown();
        }
        DefaultMQProducer producer = producer("writing");
        for (int i = 0; i < 8; i++) {
            producer.send(new Message(topic, utf8("plain " + i)));
            Message rich = new Message(topic, "tag-" + i % 2, "key-" + i + " shared", utf8("rich \u4e2d " + i));
            rich.putUserProperty("number", Integer.toString(i));
            rich.putUserProperty("odd", "\u00e9 = \u0003");
            rich.setFlag(-i);
            producer.send(rich);
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(new Message(topic, "batch", "batch-" + i, utf8("batch " + i)));
        }
        producer.send(batch);
        producer.shutdown();
    }

    private void send(String topic, String body, int count) throws Exception {
        DefaultMQProducer producer = producer("sending");
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, utf8(body + " " + i)), queues.get(i % queues.size()));
        }
        producer.shutdown();
    }

    private void late(String topic, int level, int count) throws Exception {
        DefaultMQProducer producer = producer("delaying");
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "late", "late-" + level + "-" + i, utf8("late " + level + " " + i));
            message.setDelayTimeLevel(level);
            producer.send(message);
        }
        producer.shutdown();
    }

    private DefaultMQPushConsumer member(String topic, String group, MessageListenerConcurrently listener)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.start();
        return consumer;
    }

    private static void consumed(MessageExt message) {
        say("consumed", message.getTopic(), message.getReconsumeTimes(), new String(message.getBody(), StandardCharsets.UTF_8));
    }

    /** Of six messages one fails twice (it waits at the end), one waits, one has come but nobody was there, one is dead. */
    private void work(String topic, String group) throws Exception {
        send(topic, "work", 6);
        CountDownLatch calls = new CountDownLatch(7);
        DefaultMQPushConsumer consumer = member(topic, group, (messages, context) -> {
            MessageExt message = messages.get(0);
            consumed(message);
            calls.countDown();
            return handled(message, context, calls);
        });
        await(calls);
        consumer.shutdown();
        send(topic, "later work", 4);
        await("%RETRY%" + group, 2);
    }

    private static ConsumeConcurrentlyStatus handled(
        MessageExt message, ConsumeConcurrentlyContext context, CountDownLatch calls) {
        switch (new String(message.getBody(), StandardCharsets.UTF_8)) {
            case "work 1": context.setDelayLevelWhenNextConsume(message.getReconsumeTimes() == 0 ? 1 : 3); break;
            case "work 2": context.setDelayLevelWhenNextConsume(-1); break;
            case "work 3": context.setDelayLevelWhenNextConsume(3); break;
            case "work 4": await(calls); context.setDelayLevelWhenNextConsume(2); break;
            default: return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    private void consume(String topic, String group, int count) throws Exception {
        CountDownLatch calls = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = member(topic, group, (messages, context) -> {
            messages.forEach(Stores::consumed);
            messages.forEach(message -> calls.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await(calls);
        consumer.shutdown();
    }

    private TransactionMQProducer dealer(String group, CountDownLatch asked) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("asked", new String(message.getBody(), StandardCharsets.UTF_8));
                asked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        // As 4.x does itself: from 5.0 on a producer that sends nothing is unknown to every broker.
        producer.getDefaultMQProducerImpl().getTopicPublishInfoTable()
            .put(producer.getCreateTopicKey(), new TopicPublishInfo());
        producer.setHeartbeatBrokerInterval(500);
        producer.start();
        return producer;
    }

    private void deal(String topic, String group) throws Exception {
        TransactionMQProducer producer = dealer(group, new CountDownLatch(0));
        for (LocalTransactionState state : LocalTransactionState.values()) {
            for (int i = 0; i < 2; i++) {
                Message message = new Message(topic, "deal", "deal-" + i, utf8(state + " " + i));
                producer.sendMessageInTransaction(message, state);
            }
        }
        producer.shutdown();
    }

    private void settle(String group) throws Exception {
        CountDownLatch asked = new CountDownLatch(2);
        TransactionMQProducer producer = dealer(group, asked);
        await(asked);
        // The answer goes out behind the call.
        Thread.sleep(500);
        producer.shutdown();
    }

    private void find(String topic, String key) throws Exception {
        DefaultMQProducer producer = producer("finding");
        try {
            for (MessageExt message : producer.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
                say("found", key, new String(message.getBody(), StandardCharsets.UTF_8));
            }
        } catch (MQClientException nothing) {
            say("found", key, nothing.getMessage().split("\n")[0]);
        }
        producer.shutdown();
    }

    /** What is in a topic's queues now, from their beginnings. */
    private List<MessageExt> stored(String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("reading");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("reading");
        consumer.start();
        List<MessageExt> found = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            PullResult result = consumer.pull(queue, "*", offset, 32);
            while (result.getPullStatus() == PullStatus.FOUND) {
                found.addAll(result.getMsgFoundList());
                result = consumer.pull(queue, "*", result.getNextBeginOffset(), 32);
            }
        }
        consumer.shutdown();
        return found;
    }

    private void read(List<String> topics) throws Exception {
        for (String topic : topics) {
            for (MessageExt message : stored(topic)) {
                tell(message);
            }
        }
    }

    /** Wait until a topic has so many messages. */
    private void await(String topic, int count) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (stored(topic).size() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(100);
        }
    }

    private void run(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "write": write(words.get(1)); break;
            case "work": work(words.get(1), words.get(2)); break;
            case "deal": deal(words.get(1), words.get(2)); break;
            case "settle": settle(words.get(1)); break;
            case "late": late(words.get(1), Integer.parseInt(words.get(2)), Integer.parseInt(words.get(3))); break;
            case "consume": consume(words.get(1), words.get(2), Integer.parseInt(words.get(3))); break;
            case "read": read(words.subList(1, words.size())); break;
            case "await": await(words.get(1), Integer.parseInt(words.get(2))); break;
            case "find": find(words.get(1), words.get(2)); break;
            case "send": send(words.get(1), words.get(2), Integer.parseInt(words.get(3))); break;
            default: throw new IllegalArgumentException(words.toString());
        }
    }

    public static void main(String[] args) throws Exception {
        Stores stores = new Stores(args[0]);
        List<String> words = new ArrayList<>();
        for (int i = 1; i <= args.length; i++) {
            if (i < args.length && !args[i].equals("/")) {
                words.add(args[i]);
            } else if (!words.isEmpty()) {
                stores.run(words);
                words.clear();
            }
        }
        say("done");
        System.exit(0);
    }
}
