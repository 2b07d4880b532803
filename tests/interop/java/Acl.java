import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.acl.plain.PlainAccessValidator;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** What the original's validator says to requests: a file of frames in hex, without their length. */
public class Acl {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.home.dir", arguments[0]);
        PlainAccessValidator validator = new PlainAccessValidator();
        for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
            byte[] frame = new byte[line.length() / 2];
            for (int i = 0; i < frame.length; i++) {
                frame[i] = (byte) Integer.parseInt(line.substring(2 * i, 2 * i + 2), 16);
            }
            String verdict = "allowed";
            try {
                validator.validate(validator.parse(RemotingCommand.decode(frame), "127.0.0.1:1"));
            } catch (Exception error) {
                verdict = String.valueOf(error.getMessage());
            }
            System.out.println("verdict\t" + verdict.replaceAll("\\s", " "));
        }
        System.out.println("done");
        System.exit(0);
    }
}
