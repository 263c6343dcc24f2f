import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.admin.PulsarAdminException;
import picocli.CommandLine;

/**
 * pulsar-admin, asked line by line, so that Java starts once: arguments as a JSON list on stdin, the answer as a JSON object on stdout:
 * code, status (HTTP, 0 without), out, error.
 */
public class Admin extends PulsarAdminTool {
    private int status;
    private String error = "";

    Admin(Properties properties) throws Exception {
        super(properties);
        CommandLine.IExecutionExceptionHandler usual = commander.getExecutionExceptionHandler();
        commander.setExecutionExceptionHandler((exception, command, parsed) -> {
            if (exception instanceof PulsarAdminException refused) {
                status = Math.max(refused.getStatusCode(), 0);
            }
            error = exception.getClass().getSimpleName() + ": " + exception.getMessage();
            return usual == null ? 1 : usual.handleExecutionException(exception, command, parsed);
        });
    }

    Map<String, Object> ask(String[] arguments) {
        StringWriter out = new StringWriter();
        StringWriter err = new StringWriter();
        commander.setOut(new PrintWriter(out, true));
        commander.setErr(new PrintWriter(err, true));
        java.io.ByteArrayOutputStream direct = new java.io.ByteArrayOutputStream();
        System.setOut(new PrintStream(direct, true, StandardCharsets.UTF_8));
        status = 0;
        error = "";
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", run(arguments) ? 0 : 1);
        answer.put("status", status);
        answer.put("out", out + direct.toString(StandardCharsets.UTF_8));
        answer.put("error", error.isEmpty() ? err.toString() : error);
        return answer;
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", words[0]);
        ObjectMapper json = new ObjectMapper();
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Admin admin = new Admin(properties);
        answers.println("ready");
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            answers.println(json.writeValueAsString(admin.ask(json.readValue(line, String[].class))));
            answers.flush();
        }
    }
}
