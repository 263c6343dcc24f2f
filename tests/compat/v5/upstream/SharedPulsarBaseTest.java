package org.apache.pulsar.broker.service;

import java.util.Set;
import java.util.UUID;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.PulsarClient;
import org.testng.annotations.AfterClass;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.BeforeMethod;

/**
 * Stands in for Apache Pulsar's class of this name, which starts a broker inside the test's process: what the V5 test classes use of
 * it, for a server that runs already. The system properties magnetar.service and magnetar.admin have its two addresses.
 *
 * <p>Each test method has a namespace of its own, which goes with the test. What a class takes from the inside of a broker is not
 * here: its tests fail with NoSuchMethodError or NoClassDefFoundError.
 */
public abstract class SharedPulsarBaseTest {
    private static final String TENANT = "test-tenant";

    protected PulsarAdmin admin;
    protected PulsarClient pulsarClient;
    private String namespace;

    protected String getBrokerServiceUrl() {
        return System.getProperty("magnetar.service");
    }

    protected String getWebServiceUrl() {
        return System.getProperty("magnetar.admin");
    }

    protected String getNamespace() {
        return namespace;
    }

    protected String newTopicName() {
        return "persistent://" + namespace + "/topic-" + suffix();
    }

    @BeforeClass(alwaysRun = true)
    public void setupSharedCluster() throws Exception {
        admin = PulsarAdmin.builder().serviceHttpUrl(getWebServiceUrl()).build();
        pulsarClient = PulsarClient.builder().serviceUrl(getBrokerServiceUrl()).build();
        if (!admin.tenants().getTenants().contains(TENANT)) {
            Set<String> clusters = Set.copyOf(admin.clusters().getClusters());
            admin.tenants().createTenant(
                    TENANT, org.apache.pulsar.common.policies.data.TenantInfo.builder().allowedClusters(clusters).build());
        }
    }

    @AfterClass(alwaysRun = true)
    public void closeSharedClients() throws Exception {
        pulsarClient.close();
        admin.close();
    }

    @BeforeMethod(alwaysRun = true)
    public void setupSharedTest() throws Exception {
        namespace = TENANT + "/test-" + suffix();
        admin.namespaces().createNamespace(namespace);
    }

    @AfterMethod(alwaysRun = true)
    public void cleanupSharedTest() throws Exception {
        admin.namespaces().deleteNamespace(namespace, true);
    }

    private static String suffix() {
        return UUID.randomUUID().toString().substring(0, 8);
    }
}
