import java.util.ArrayList;
import java.util.List;
import org.testng.ITestResult;
import org.testng.TestListenerAdapter;
import org.testng.TestNG;
import org.testng.xml.XmlClass;
import org.testng.xml.XmlSuite;
import org.testng.xml.XmlTest;

/**
 * Runs test classes with TestNG and prints a line for each of their tests: "passed", "failed" or "skipped", Class::method, and why.
 * Arguments: full names of classes. A class that cannot be loaded is one line, "unloadable". A test that takes longer than two
 * minutes has failed.
 */
public class RunTests {
    private static final String TEST_TIMEOUT_MS = "120000";

    public static void main(String[] names) {
        List<XmlClass> classes = new ArrayList<>();
        XmlSuite suite = new XmlSuite();
        suite.setTimeOut(TEST_TIMEOUT_MS);
        XmlTest test = new XmlTest(suite);
        for (String name : names) {
            try {
                Class<?> found = Class.forName(name);
                found.getMethods();
                classes.add(new XmlClass(found));
            } catch (ClassNotFoundException | LinkageError error) {
                say("unloadable", name.substring(name.lastIndexOf('.') + 1), error);
            }
        }
        test.setXmlClasses(classes);
        TestNG runner = new TestNG(false);
        runner.setUseDefaultListeners(false);
        runner.setVerbose(0);
        runner.setXmlSuites(List.of(suite));
        runner.addListener(new Teller());
        runner.run();
        System.exit(0);
    }

    private static void say(String outcome, String test, Throwable why) {
        String first = why == null ? "" : why.toString().lines().findFirst().orElse("");
        System.out.println("@ " + outcome + " " + test + " " + first);
        if (why != null) {
            why.printStackTrace(System.out);
        }
        System.out.flush();
    }

    private static final class Teller extends TestListenerAdapter {
        private static void tell(String outcome, ITestResult result) {
            String name = result.getTestClass().getRealClass().getSimpleName() + "::" + result.getMethod().getMethodName();
            say(outcome, name, result.getThrowable());
        }

        @Override
        public void onTestStart(ITestResult result) {
            tell("started", result);
        }

        @Override
        public void onTestSuccess(ITestResult result) {
            tell("passed", result);
        }

        @Override
        public void onTestFailure(ITestResult result) {
            tell("failed", result);
        }

        @Override
        public void onTestSkipped(ITestResult result) {
            tell("skipped", result);
        }

        @Override
        public void onConfigurationFailure(ITestResult result) {
            tell("configuration", result);
        }
    }
}
