import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The unmodified administration client creates topics from several threads at once. A line on
 * standard output has a topic, and the milliseconds after which it had a route.
 *
 *   NAMESRV BROKER THREADS TOPICS_OF_EACH
 */
public class NewTopics {
    private static final long PATIENCE_MS = 40_000;

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[2]);
        int topics = Integer.parseInt(args[3]);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setInstanceName("new-topics");
        admin.setNamesrvAddr(args[0]);
        admin.start();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (int round = 0; round < topics; round++) {
            List<Callable<String>> creations = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                String topic = "new-" + thread + "-" + round;
                creations.add(() -> topic + "\t" + create(admin, args[1], topic));
            }
            for (Future<String> line : pool.invokeAll(creations)) {
                System.out.println(line.get());
            }
        }
        System.out.println("done");
        System.out.flush();
        System.exit(0);
    }

    private static long create(DefaultMQAdminExt admin, String broker, String topic) throws Exception {
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 4, 4, 6));
        long created = System.currentTimeMillis();
        while (true) {
            try {
                admin.examineTopicRouteInfo(topic);
                return System.currentTimeMillis() - created;
            } catch (MQClientException noRoute) {
                if (System.currentTimeMillis() - created > PATIENCE_MS) {
                    throw noRoute;
                }
                Thread.sleep(10);
            }
        }
    }
}
