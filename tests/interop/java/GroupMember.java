import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A member of a group with the unmodified Apache client, with the commands and the log of our own
 * members (tests/chaos/group_member.py): bodies are "NUMBER FAILURES WAIT_MS", or a number alone.
 *
 *   NAMESRV GROUP TOPIC FILE ordered|concurrent MAX_RETRIES INSTANCE
 */
public class GroupMember {
    private final FileOutputStream log;

    private GroupMember(String file) throws IOException {
        log = new FileOutputStream(file, true);
    }

    private synchronized void write(String kind, MessageQueue queue, MessageExt message, String number, boolean failed) {
        String line = kind + "\t" + System.nanoTime() + "\t" + queue.getTopic() + ":" + queue.getQueueId()
            + "\t" + message.getQueueOffset() + "\t" + number + "\t" + (failed ? 1 : 0) + "\n";
        try {
            log.write(line.getBytes(StandardCharsets.US_ASCII));
        } catch (IOException problem) {
            throw new IllegalStateException(problem);
        }
    }

    /** Does what the message says; whether it went well. */
    private boolean handle(MessageQueue queue, MessageExt message) {
        String[] words = new String(message.getBody(), StandardCharsets.US_ASCII).split(" ");
        boolean failed = words.length > 1 && message.getReconsumeTimes() < Integer.parseInt(words[1]);
        write("begin", queue, message, words[0], failed);
        int wait = words.length > 1 ? Integer.parseInt(words[2]) : 0;
        if (wait > 0) {
            try {
                Thread.sleep(wait);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
        write("end", queue, message, words[0], failed);
        return !failed;
    }

    private void listen(DefaultMQPushConsumer consumer, boolean ordered) {
        if (ordered) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                handle(context.getMessageQueue(), messages.get(0))
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                handle(context.getMessageQueue(), messages.get(0))
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    private static String owned(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic))
            .map(queue -> queue.getTopic() + ":" + queue.getQueueId())
            .collect(Collectors.joining(","));
    }

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setInstanceName(args[6]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(Integer.parseInt(args[5]));
        consumer.setPollNameServerInterval(Integer.getInteger("periods.ms", 30000));
        consumer.setHeartbeatBrokerInterval(Integer.getInteger("periods.ms", 30000));
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.subscribe(args[2], "*");
        new GroupMember(args[3]).listen(consumer, args[4].equals("ordered"));
        consumer.start();
        System.out.println("joined\t" + consumer.buildMQClientId());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        while ("owned".equals(commands.readLine())) {
            System.out.println("owned\t" + owned(consumer, args[2]));
        }
        consumer.shutdown();
        System.out.println("done");
        System.exit(0);
    }
}
