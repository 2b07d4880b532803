import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's administration tool for many commands in one process. Each line of standard input is a
 * command: the milliseconds after which it is interrupted, and its words, separated by tabs. Its
 * output follows on standard output, and a line with \u0004.
 */
public class Mqadmin {
    /** Commands keep closed producers and consumers in fields, so that each run needs new ones. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** 5.x ends a command by waiting up to 3 s for a thread that waits for events. */
    private static void endIdleServices(Thread command) {
        for (StackTraceElement frame : command.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    if (thread.getName().equals("NettyEventExecutor")) {
                        thread.interrupt();
                    }
                }
                return;
            }
        }
    }

    public static void main(String[] unused) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split("\t");
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream catcher = new PrintStream(printed, true, "UTF-8");
            System.setOut(catcher);
            System.setErr(catcher);
            forgetCommands();
            Thread command = new Thread(() -> MQAdminStartup.main0(Arrays.copyOfRange(words, 1, words.length), null));
            command.start();
            long end = System.currentTimeMillis() + Long.parseLong(words[0]);
            while (command.isAlive() && System.currentTimeMillis() < end) {
                command.join(50);
                endIdleServices(command);
            }
            for (int tries = 0; command.isAlive() && tries < 50; tries++) {
                command.interrupt();
                command.join(100);
            }
            answers.print(printed.toString("UTF-8"));
            answers.println("\n\u0004");
        }
        System.exit(0);
    }
}
