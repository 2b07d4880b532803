import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * What 4.9.7's validator says to requests: a file of frames in hex, without their length. By
 * reflection, because 5.3.3 has no such class.
 */
public class Acl {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.home.dir", arguments[0]);
        Class<?> type = Class.forName("org.apache.rocketmq.acl.plain.PlainAccessValidator");
        Object validator = type.getDeclaredConstructor().newInstance();
        Method parse = type.getMethod("parse", RemotingCommand.class, String.class);
        Method validate = type.getMethod("validate", Class.forName("org.apache.rocketmq.acl.AccessResource"));
        for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
            byte[] frame = new byte[line.length() / 2];
            for (int i = 0; i < frame.length; i++) {
                frame[i] = (byte) Integer.parseInt(line.substring(2 * i, 2 * i + 2), 16);
            }
            String verdict = "allowed";
            try {
                validate.invoke(validator, parse.invoke(validator, RemotingCommand.decode(frame), "127.0.0.1:1"));
            } catch (InvocationTargetException error) {
                verdict = String.valueOf(error.getCause().getMessage());
            }
            System.out.println("verdict\t" + verdict.replaceAll("\\s", " "));
        }
        System.out.println("done");
        System.exit(0);
    }
}
