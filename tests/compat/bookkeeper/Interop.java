// Apache BookKeeper's own client, driven by lines on stdin: one command in, one line out ("ok ..." or "error CODE TEXT").
// Run by test_java_interop.py; by hand: java -cp 'JARS/*' Interop.java zk+hierarchical://HOST:PORT/ledgers v2|v3

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

public class Interop {
    static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);
    static final Map<Long, LedgerHandle> handles = new HashMap<>();
    static BookKeeper client;
    static BookKeeperAdmin admin;

    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setUseV2WireProtocol(args[1].equals("v2"));
        conf.setExplictLacInterval(20);
        conf.setBatchReadEnabled(true);
        client = new BookKeeper(conf);
        admin = new BookKeeperAdmin(client, conf);
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (BKException e) {
                answer = "error " + e.getCode() + " " + e.getMessage();
            } catch (Throwable e) {
                Throwable cause = e.getCause() instanceof BKException ? e.getCause() : e;
                int code = cause instanceof BKException ? ((BKException) cause).getCode() : 0;
                answer = "error " + code + " " + cause;
            }
            System.out.println(answer.replace('\n', ' ').trim());
        }
        client.close();
        System.exit(0);
    }

    /** Entry i: its number, as often as fits. */
    static byte[] payload(long i, int size) {
        byte[] word = String.format("%08d|", i).getBytes(StandardCharsets.UTF_8);
        byte[] data = new byte[size];
        for (int at = 0; at < size; at++) {
            data[at] = word[at % word.length];
        }
        return data;
    }

    static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "write": return write(words);
            case "append": return append(words);
            case "close": handles.remove(Long.parseLong(words[1])).close(); return "";
            case "read": return read(client.openLedger(id(words), digest(words), PASSWORD));
            case "peek": return "" + client.openLedgerNoRecovery(id(words), digest(words), PASSWORD).getLastAddConfirmed();
            case "batch": return batch(words);
            case "tail": return tail(words);
            case "lac": return "" + client.openLedgerNoRecovery(id(words), digest(words), PASSWORD).readExplicitLastConfirmed();
            case "force": return force(words);
            case "entries": return entries(words);
            case "info": return info();
            case "delete": client.deleteLedger(Long.parseLong(words[1])); return "";
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    static long id(String[] words) {
        return Long.parseLong(words[1]);
    }

    static DigestType digest(String[] words) {
        return DigestType.valueOf(words[2]);
    }

    /** write E Qw Qa DIGEST ENTRIES BYTES close|leave -> ledger id; all adds are under way at once. */
    static String write(String[] words) throws Exception {
        LedgerHandle ledger = client.createLedger(Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                Integer.parseInt(words[3]), DigestType.valueOf(words[4]), PASSWORD);
        int entries = Integer.parseInt(words[5]);
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int i = 0; i < entries; i++) {
            adds.add(ledger.appendAsync(payload(i, Integer.parseInt(words[6]))));
        }
        for (CompletableFuture<Long> add : adds) {
            add.get(60, TimeUnit.SECONDS);
        }
        if (words[7].equals("close")) {
            ledger.close();
        } else {
            handles.put(ledger.getId(), ledger);
        }
        return "" + ledger.getId();
    }

    /** append LEDGER BYTES -> entry id, through the handle that `write ... leave` kept. */
    static String append(String[] words) throws Exception {
        LedgerHandle ledger = handles.get(id(words));
        return "" + ledger.addEntry(payload(ledger.getLastAddPushed() + 1, Integer.parseInt(words[2])));
    }

    /** last entry id, length, CRC-32 of all payloads. */
    static String read(LedgerHandle ledger) throws Exception {
        CRC32 crc = new CRC32();
        long last = ledger.getLastAddConfirmed();
        if (last >= 0) {
            Enumeration<LedgerEntry> found = ledger.readEntries(0, last);
            while (found.hasMoreElements()) {
                crc.update(found.nextElement().getEntry());
            }
        }
        return last + " " + ledger.getLength() + " " + crc.getValue();
    }

    /** batch LEDGER DIGEST COUNT BYTES -> number of entries that one batch read of the first ones brought. */
    static String batch(String[] words) throws Exception {
        LedgerHandle ledger = client.openLedgerNoRecovery(id(words), digest(words), PASSWORD);
        Enumeration<LedgerEntry> found =
                ledger.batchReadEntries(0, Integer.parseInt(words[3]), Long.parseLong(words[4]));
        int count = 0;
        while (found.hasMoreElements()) {
            LedgerEntry entry = found.nextElement();
            byte[] data = entry.getEntry();
            if (!Arrays.equals(data, payload(count, data.length))) {
                throw new IllegalStateException("entry " + count + " is another");
            }
            count++;
        }
        return "" + count;
    }

    /** tail LEDGER DIGEST ENTRY MILLISECONDS -> LAC, and the entry's length or - : a long poll. */
    static String tail(String[] words) throws Exception {
        LedgerHandle ledger = client.openLedgerNoRecovery(id(words), digest(words), PASSWORD);
        CompletableFuture<String> answer = new CompletableFuture<>();
        ledger.asyncReadLastConfirmedAndEntry(Long.parseLong(words[3]), Long.parseLong(words[4]), false,
                (rc, lac, entry, context) -> answer.complete(
                        rc != 0 ? "failed " + rc : lac + " " + (entry == null ? "-" : entry.getLength())), null);
        return answer.get(60, TimeUnit.SECONDS);
    }

    /** force DIGEST ENTRIES BYTES -> ledger id and LAC of a ledger written with DEFERRED_SYNC, forced and closed. */
    static String force(String[] words) throws Exception {
        WriteHandle ledger = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.valueOf(words[1])).withPassword(PASSWORD)
                .withWriteFlags(EnumSet.of(WriteFlag.DEFERRED_SYNC)).execute().get();
        for (int i = 0; i < Integer.parseInt(words[2]); i++) {
            ledger.append(payload(i, Integer.parseInt(words[3])));
        }
        long before = ledger.getLastAddConfirmed();
        ledger.force().get(60, TimeUnit.SECONDS);
        String result = ledger.getId() + " " + before + " " + ledger.getLastAddConfirmed();
        ledger.close();
        return result;
    }

    /** entries BOOKIE LEDGER -> how many of the ledger's entries the bookie says it holds. */
    static String entries(String[] words) throws Exception {
        return "" + admin.asyncGetListOfEntriesOfLedger(BookieId.parse(words[1]), Long.parseLong(words[2]))
                .get(20, TimeUnit.SECONDS).getTotalNumOfAvailableEntries();
    }

    static String info() throws Exception {
        int sound = 0;
        for (var one : client.getBookieInfo().values()) {
            if (one.getFreeDiskSpace() > 0 && one.getTotalDiskSpace() >= one.getFreeDiskSpace()) {
                sound++;
            }
        }
        return "" + sound;
    }
}
