; Prints, for each pair of words KIND FILE, one line of JSON: what Elle (txn) or Knossos (register) says of the operations in FILE.
(require '[clojure.edn :as edn] '[clojure.java.io :as io] '[clojure.string :as str])

(defn operations [file]
  (with-open [lines (io/reader file)]
    (mapv edn/read-string (line-seq lines))))

(defn by-elle [file]
  (require 'elle.list-append 'jepsen.history)
  (let [history ((resolve 'jepsen.history/history) (operations file))
        found   ((resolve 'elle.list-append/check) {:consistency-models [:serializable]} history)]
    (into {} (for [[kind cases] (:anomalies found)] [(name kind) (if (coll? cases) (count cases) 1)]))))

(defn by-knossos [file]
  (require 'knossos.competition 'knossos.model 'knossos.history)
  (let [found ((resolve 'knossos.competition/analysis) ((resolve 'knossos.model/register) 0)
               ((resolve 'knossos.history/index) (operations file)) {:time-limit 300000})]
    (case (:valid? found)
      true  {}
      false {"nonlinearizable" 1}
      {"unknown" 1})))

(doseq [[kind file] (partition 2 *command-line-args*)]
  (let [found (case kind "txn" (by-elle file) "register" (by-knossos file))]
    (println (str "{" (str/join ", " (for [[name number] (sort found)] (str "\"" name "\": " number))) "}"))))
(shutdown-agents)
