import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.stats.StatsAllSubCommand;

/**
 * What the pages of Apache's dashboard ask its administration client, in the dashboard's order, with
 * the unmodified client. A line on standard output has the page's request, the codes that were sent
 * for it, and the result as JSON, separated by tabs.
 *
 *   NAMESRV
 */
public class Dashboard {
    private static final String TOPIC = "Dashboard";
    private static final String GROUP = "dashboard-readers";
    private static final String LEFT = "dashboard-left";
    private static final String WRITERS = "dashboard-writers";
    private static final String TRACE = "RMQ_SYS_TRACE_TOPIC";
    private static final String TOOLS = "TOOLS_CONSUMER";
    private static final int MESSAGES = 3;
    private static final long PATIENCE_MS = 40_000;
    private static final long TIMEOUT_MS = 10_000;

    /** The codes that were sent for a page; not those that a client sends by itself. */
    private static final Set<Integer> CODES = new ConcurrentSkipListSet<>();
    private static final Set<Integer> BY_ITSELF = Set.of(34, 35, 38, 40);
    private static final RPCHook HOOK = new RPCHook() {
        @Override public void doBeforeRequest(String address, RemotingCommand request) {
            if (!BY_ITSELF.contains(request.getCode())) {
                CODES.add(request.getCode());
            }
        }

        @Override public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) { }
    };

    private final String namesrv;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(HOOK, TIMEOUT_MS);

    private Dashboard(String namesrv) throws Exception {
        this.namesrv = namesrv;
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin");
        admin.start();
    }

    private static <T> T page(String request, Callable<T> ask) {
        CODES.clear();
        T result = null;
        Object shown;
        try {
            result = ask.call();
            shown = result;
        } catch (Exception problem) {
            shown = error(problem);
        }
        String codes = CODES.toString().replaceAll("[\\[\\] ]", "");
        System.out.println(request + "\t" + codes + "\t" + RemotingSerializable.toJson(shown, false));
        return result;
    }

    private static Map<String, Object> error(Exception problem) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("error", problem.getClass().getSimpleName());
        for (String part : new String[] {"getResponseCode", "getErrorMessage"}) {
            try {
                shown.put(part, problem.getClass().getMethod(part).invoke(problem));
            } catch (ReflectiveOperationException none) {
                shown.put("message", String.valueOf(problem.getMessage()));
            }
        }
        return shown;
    }

    /** Waits for what happens in the background. */
    private static void until(String what, Callable<Boolean> happened) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < deadline) {
            try {
                if (happened.call()) {
                    return;
                }
            } catch (Exception notYet) { }
            Thread.sleep(100);
        }
        throw new IllegalStateException(what + " takes too long");
    }

    private static Object call(Object target, String method, Object... arguments) throws Exception {
        for (var one : target.getClass().getMethods()) {
            if (one.getName().equals(method) && one.getParameterCount() == arguments.length) {
                try {
                    return one.invoke(target, arguments);
                } catch (java.lang.reflect.InvocationTargetException problem) {
                    throw (Exception) problem.getCause();
                }
            }
        }
        throw new NoSuchMethodException(method);
    }

    private String master() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().get("broker-a").getBrokerAddrs().get(MixAll.MASTER_ID);
    }

    /** Whether a topic is of this program: other tests use the broker too. */
    private static boolean isOurs(String topic) {
        return topic.endsWith(TOPIC) || topic.endsWith(GROUP);
    }

    private Object clusters() throws Exception {
        return List.of(admin.fetchBrokerRuntimeStats(master()).getTable(), admin.examineBrokerClusterInfo());
    }

    /** A point of the broker's line on the home page: the average of how many rates, and whether it is a rate. */
    private Object brokerPoint() throws Exception {
        String[] values = admin.fetchBrokerRuntimeStats(master()).getTable().get("getTotalTps").split(" ");
        BigDecimal total = BigDecimal.ZERO;
        for (String value : values) {
            total = total.add(new BigDecimal(value));
        }
        return List.of(values.length, total.divide(BigDecimal.valueOf(values.length), 5, RoundingMode.HALF_UP).signum() >= 0);
    }

    /** A point of a topic's lines on the home page: rate and number of messages, in and out. */
    private List<Object> topicPoint(String topic) throws Exception {
        double in = 0;
        double out = 0;
        long inToday = 0;
        long outToday = 0;
        admin.fetchAllTopicList();
        for (var broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            String address = broker.getBrokerAddrs().get(MixAll.MASTER_ID);
            var put = admin.viewBrokerStatsData(address, "TOPIC_PUT_NUMS", topic);
            in += put.getStatsMinute().getTps();
            inToday += StatsAllSubCommand.compute24HourSum(put);
            for (String group : admin.queryTopicConsumeByWho(topic).getGroupList()) {
                if (!group.equals(GROUP)) {
                    continue;  // Apache also has the readers of the message page
                }
                var got = admin.viewBrokerStatsData(address, "GROUP_GET_NUMS", topic + "@" + group);
                out += got.getStatsMinute().getTps();
                outToday += StatsAllSubCommand.compute24HourSum(got);
            }
        }
        return List.of(in > 0, inToday, out > 0, outToday);
    }

    private Object topics() throws Exception {
        Set<String> shown = new TreeSet<>(admin.fetchAllTopicList().getTopicList());
        shown.removeIf(name -> !isOurs(name));
        return shown;
    }

    private Object systemTopics() throws Exception {
        var api = MQClientManager.getInstance().getOrCreateMQClientInstance(admin).getMQClientAPIImpl();
        return new TreeSet<>(api.getSystemTopicList(TIMEOUT_MS).getTopicList());
    }

    private Object topicConfig(String topic) throws Exception {
        List<Object> shown = new ArrayList<>();
        for (var broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            shown.add(admin.getAllTopicConfig(broker.selectBrokerAddr(), TIMEOUT_MS).getTopicConfigTable().get(topic));
        }
        return shown;
    }

    /** The types of the topics that aren't the system's, as 2.x shows them. */
    private Object topicTypes() throws Exception {
        Map<String, Object> shown = new LinkedHashMap<>();
        for (TopicConfig config : admin.getAllTopicConfig(master(), TIMEOUT_MS).getTopicConfigTable().values()) {
            if (isOurs(config.getTopicName())) {
                shown.put(config.getTopicName(), call(config, "getAttributes"));
            }
        }
        return shown;
    }

    private Object createTopic() throws Exception {
        TopicConfig config = new TopicConfig(TOPIC, 1, 1, 6);
        try {
            call(config, "setAttributes", Map.of("+message.type", "NORMAL"));
        } catch (NoSuchMethodException before5) { }
        admin.createAndUpdateTopicConfig(master(), config);
        return true;
    }

    private Object deleteTopic(String topic) throws Exception {
        admin.deleteTopicInBroker(Set.of(master()), topic);
        admin.deleteTopicInNameServer(Set.of(namesrv), "DefaultCluster", topic);
        return true;
    }

    private static Message message(String body) {
        return new Message(TOPIC, "tag", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    private Object send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("SELF_TEST_P_GROUP", HOOK);
        producer.setInstanceName("send");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        try {
            return producer.send(message("first")).getSendStatus();
        } finally {
            producer.shutdown();
        }
    }

    private Map<String, Object> group(String name) throws Exception {
        Map<String, Object> shown = new LinkedHashMap<>();
        try {
            var stats = admin.examineConsumeStats(name);
            shown.put("consumeTps", stats.getConsumeTps() >= 0);
            shown.put("diffTotal", stats.computeTotalDiff());
        } catch (Exception problem) {
            shown.put("stats", error(problem));
        }
        try {
            var online = admin.examineConsumerConnectionInfo(name);
            shown.put("count", online.getConnectionSet().size());
            shown.put("messageModel", online.getMessageModel());
            shown.put("consumeType", online.getConsumeType());
            shown.put("version", online.computeMinVersion());
        } catch (Exception problem) {
            shown.put("connection", error(problem));
        }
        return shown;
    }

    private Object groups() throws Exception {
        Map<String, Object> shown = new LinkedHashMap<>();
        for (String name : admin.getAllSubscriptionGroup(master(), TIMEOUT_MS).getSubscriptionGroupTable().keySet()) {
            Object found = group(name);
            if (name.equals(GROUP)) {
                shown.put(name, found);
            } else if (name.matches("[A-Z_-]+")) {
                shown.put(name, "the system's");  // has a retry topic once that is registered
            }
        }
        return shown;
    }

    private Object createGroup(String name) throws Exception {
        var config = admin.getAllSubscriptionGroup(master(), TIMEOUT_MS).getSubscriptionGroupTable().get(TOOLS);
        config.setGroupName(name);
        admin.createAndUpdateSubscriptionGroupConfig(master(), config);
        return true;
    }

    private Object groupConfig(String name) throws Exception {
        return admin.getAllSubscriptionGroup(master(), TIMEOUT_MS).getSubscriptionGroupTable().get(name);
    }

    private Object deleteGroup() throws Exception {
        admin.deleteSubscriptionGroup(master(), GROUP, true);
        deleteTopic(MixAll.getRetryTopic(GROUP));
        deleteTopic(MixAll.getDLQTopic(GROUP));
        return true;
    }

    /** Offsets and client of each queue. */
    private Object progress(String topic, String name) throws Exception {
        Map<MessageQueue, String> clients = new LinkedHashMap<>();
        for (var connection : admin.examineConsumerConnectionInfo(name).getConnectionSet()) {
            for (MessageQueue queue : admin.getConsumerRunningInfo(name, connection.getClientId(), false).getMqTable().keySet()) {
                clients.put(queue, connection.getClientId());
            }
        }
        Map<String, Object> shown = new LinkedHashMap<>();
        var stats = topic == null ? admin.examineConsumeStats(name) : admin.examineConsumeStats(name, topic);
        stats.getOffsetTable().forEach((queue, at) -> shown.put(queue.getTopic() + ":" + queue.getQueueId(), Arrays.asList(
            at.getBrokerOffset(), at.getConsumerOffset(), at.getLastTimestamp(),
            clients.get(queue))));
        return shown;
    }

    private Object resetOffset(String name, long time) throws Exception {
        Map<String, Object> shown = new LinkedHashMap<>();
        admin.resetOffsetByTimestamp(TOPIC, name, time, true).forEach(
            (queue, offset) -> shown.put(queue.getBrokerName() + ":" + queue.getQueueId(), offset));
        return shown;
    }

    private Object resetOffline(long time) throws Exception {
        try {
            return resetOffset(LEFT, time);
        } catch (Exception offline) {
            Map<String, Object> shown = error(offline);
            shown.put("rollback", admin.resetOffsetByTimestampOld(LEFT, TOPIC, time, true));
            return shown;
        }
    }

    /** Reads a topic between two times as the message pages do: found by time, pulled from there. */
    private List<MessageExt> messages(String topic, long begin, long end) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(TOOLS, HOOK);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("pages");
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long offset = consumer.searchOffset(queue, begin);
                long last = consumer.searchOffset(queue, end);
                while (offset <= last) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        break;
                    }
                    found.addAll(result.getMsgFoundList());
                    offset = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
        return found;
    }

    private Object deadLetters(long begin, long end) throws Exception {
        admin.examineTopicRouteInfo(MixAll.getDLQTopic(GROUP));
        return messages(MixAll.getDLQTopic(GROUP), begin, end);
    }

    private Object view(String topic, String id) throws Exception {
        MessageExt message = admin.viewMessage(topic, id);
        return Arrays.asList(message, admin.messageTrackDetail(message));
    }

    private Object consume(String topic, String id) throws Exception {
        for (var connection : admin.examineConsumerConnectionInfo(GROUP).getConnectionSet()) {
            return admin.consumeMessageDirectly(GROUP, connection.getClientId(), topic, id).getConsumeResult();
        }
        throw new IllegalStateException("no consumer");
    }

    /** The trace of a message: the first field of each of its records. */
    private Set<String> trace(String id) throws Exception {
        Set<String> kinds = new TreeSet<>();
        for (MessageExt message : admin.queryMessage(TRACE, id, 64, 0, System.currentTimeMillis()).getMessageList()) {
            for (String one : new String(message.getBody(), StandardCharsets.UTF_8).split("\u0002")) {
                kinds.add(one.split("\u0001")[0]);
            }
        }
        return kinds;
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP, true, TRACE);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("reader");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(0);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            new String(messages.get(0).getBody(), StandardCharsets.UTF_8).equals("bad")
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        return consumer;
    }

    private void run() throws Exception {
        long begin = System.currentTimeMillis() - 60_000;
        page("topic/createOrUpdate.do", this::createTopic);
        page("consumer/createOrUpdate.do", () -> createGroup(GROUP));
        until("a route", () -> admin.examineTopicRouteInfo(TOPIC) != null);
        page("topic/sendTopicMessage.do", this::send);
        page("consumer/consumerConnection.query (offline)", () -> admin.examineConsumerConnectionInfo(GROUP));
        DefaultMQPushConsumer consumer = consumer();
        DefaultMQProducer producer = new DefaultMQProducer(WRITERS, null, true, TRACE);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("writer");
        producer.start();
        producer.send(message("bad"));
        producer.send(message("last"));
        until("consuming", () -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return admin.examineConsumeStats(GROUP, TOPIC).computeTotalDiff() == 0
                && !admin.examineConsumeStats(GROUP, TOPIC).getOffsetTable().isEmpty();
        });
        String retry = MixAll.getRetryTopic(GROUP);
        until("the retry queue", () -> {
            // A reader that started before the retry topic had a route gets its queue half a minute later.
            var reader = consumer.getDefaultMQPushConsumerImpl();
            reader.getmQClientFactory().updateTopicRouteInfoFromNameServer(retry);
            reader.doRebalance();
            reader.persistConsumerOffset();
            return reader.getRebalanceImpl().getProcessQueueTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(retry))
                && admin.examineConsumeStats(GROUP).getOffsetTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(retry));
        });
        String dead = MixAll.getDLQTopic(GROUP);
        until("a dead letter", () -> admin.examineTopicRouteInfo(dead) != null);
        until("a producer", () -> admin.examineProducerConnectionInfo(WRITERS, TOPIC) != null);
        long end = System.currentTimeMillis() + 60_000;
        MessageExt last = messages(TOPIC, begin, end).get(MESSAGES - 1);
        // 5.x sends traces every 5 s.
        until("a trace", () -> trace(last.getMsgId()).size() == 3);
        boolean isVersion4 = MQVersion.CURRENT_VERSION < MQVersion.Version.V5_0_0.ordinal();
        if (isVersion4) {
            // Apache's broker leaves it unanswered, and the statistics take as long.
            page("acl/config.query", () -> call(admin, "examineBrokerClusterAclConfig", master()));
        }
        until("statistics", () -> topicPoint(TOPIC).equals(List.of(true, (long) MESSAGES, true, (long) MESSAGES)));

        page("dashboard: broker's line", this::brokerPoint);
        page("dashboard: topic's lines", () -> topicPoint(TOPIC));
        page("cluster/list.query", this::clusters);
        page("cluster/brokerConfig.query", () -> admin.getBrokerConfig(master()));
        page("topic/list.query", this::topics);
        page("topic/list.query (system)", this::systemTopics);
        page("topic/stats.query", () -> {
            Map<String, Object> shown = new LinkedHashMap<>();
            admin.examineTopicStats(TOPIC).getOffsetTable().forEach((queue, at) -> shown.put("" + queue.getQueueId(), at));
            return shown;
        });
        page("topic/route.query", () -> admin.examineTopicRouteInfo(TOPIC));
        page("topic/examineTopicConfig.query", () -> topicConfig(TOPIC));
        page("topic/queryTopicConsumerInfo.query", () -> admin.queryTopicConsumeByWho(TOPIC));
        page("topic/queryConsumerByTopic.query", () -> progress(TOPIC, GROUP));
        page("consumer/groupList.query", this::groups);
        page("consumer/group.query", () -> group(GROUP));
        page("consumer/examineSubscriptionGroupConfig.query", () -> groupConfig(GROUP));
        page("consumer/queryTopicByConsumer.query", () -> progress(null, GROUP));
        var online = page("consumer/consumerConnection.query", () -> admin.examineConsumerConnectionInfo(GROUP));
        String id = online.getConnectionSet().iterator().next().getClientId();
        page("consumer/consumerRunningInfo.query", () -> {
            var info = admin.getConsumerRunningInfo(GROUP, id, true);
            Map<String, Object> shown = new LinkedHashMap<>();
            shown.put("properties", info.getProperties().keySet());
            shown.put("subscriptions", info.getSubscriptionSet());
            shown.put("status", info.getStatusTable().keySet());
            shown.put("jstack", info.getJstack() != null);
            for (var one : info.getMqTable().entrySet()) {
                shown.put(one.getKey().getTopic(), one.getValue());
            }
            return shown;
        });
        page("producer/producerConnection.query", () -> admin.examineProducerConnectionInfo(WRITERS, TOPIC));
        page("producer/producerConnection.query (unknown)", () -> admin.examineProducerConnectionInfo("nobody", TOPIC));
        page("message/viewMessage.query", () -> view(TOPIC, last.getMsgId()));
        page("message/viewMessage.query (unknown)", () -> view(TOPIC, "00".repeat(16)));
        page("message/queryMessageByTopicAndKey.query", () ->
            admin.queryMessage(TOPIC, "key-bad", 64, 0, System.currentTimeMillis()).getMessageList());
        page("message/queryMessageByTopic.query", () -> messages(TOPIC, begin, end));
        page("message/queryMessageByTopic.query (later)", () -> messages(TOPIC, end, end + 1000));
        page("message/consumeMessageDirectly.do", () -> consume(TOPIC, last.getMsgId()));
        page("messageTrace/viewMessageTraceGraph.query", () -> trace(last.getMsgId()));
        page("dlqMessage/queryDlqMessageByConsumerGroup.query", () -> deadLetters(begin, end));
        MessageExt letter = messages(dead, begin, end).get(0);
        page("dlqMessage/exportDlqMessage.do", () -> admin.viewMessage(dead, letter.getMsgId()));
        page("dlqMessage/batchResendDlqMessage.do", () -> consume(dead, letter.getMsgId()));
        if (!isVersion4) {
            page("topic/list.queryTopicType", this::topicTypes);
            page("acl/users.query", () -> call(admin, "listUser", master(), ""));
            page("acl/acls.query", () -> call(admin, "listAcl", master(), "", ""));
        }
        page("consumer/resetOffset.do", () -> resetOffset(GROUP, begin));
        page("consumer/skipAccumulate.do", () -> resetOffset(GROUP, -1));
        createGroup(LEFT);
        admin.updateConsumeOffset(master(), LEFT, new MessageQueue(TOPIC, "broker-a", 0), 2);
        page("consumer/resetOffset.do (offline)", () -> resetOffline(begin));
        page("consumer/deleteSubGroup.do", this::deleteGroup);
        page("topic/deleteTopic.do", () -> deleteTopic(TOPIC));
        page("topic/stats.query (deleted)", () -> admin.examineTopicStats(TOPIC));
        System.out.println("done");
    }

    public static void main(String[] args) throws Exception {
        try {
            new Dashboard(args[0]).run();
            System.exit(0);
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }
}
