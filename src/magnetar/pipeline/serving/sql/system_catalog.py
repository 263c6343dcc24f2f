"""The system catalogs that clients ask, by name and columns, as in PostgreSQL 15; and the functions they call, as DuckDB's macros.

They lie in a schema of their own in the engine's memory: as real tables, since DuckDB's own emulation lacks most of the columns that psql
and the drivers ask for. `catalog_rows` fills those of which a pipeline has something; the others are there and empty. A decision core.
"""

from __future__ import annotations

import re
from typing import Final

SCHEMA: Final = "_catalog"
PG_CATALOG: Final = "pg_catalog"
INFORMATION_SCHEMA: Final = "information_schema"

KINDS: Final = {
    "o": "UINTEGER",
    "i": "INTEGER",
    "h": "SMALLINT",
    "l": "BIGINT",
    "b": "BOOLEAN",
    "d": "DOUBLE",
    "H": "SMALLINT[]",
    "O": "UINTEGER[]",
    "T": "VARCHAR[]",
    "z": "TIMESTAMPTZ",
    "t": "VARCHAR",
}
"""Types of the columns below; none: a text."""

_PG_CATALOG: Final = """
pg_aggregate = aggfnoid:o aggkind aggnumdirectargs:h aggtransfn:o aggfinalfn:o aggcombinefn:o aggserialfn:o aggdeserialfn:o
  aggmtransfn:o aggminvtransfn:o aggmfinalfn:o aggfinalextra:b aggmfinalextra:b aggfinalmodify aggmfinalmodify aggsortop:o
  aggtranstype:o aggtransspace:i aggmtranstype:o aggmtransspace:i agginitval aggminitval
pg_am = oid:o amname amhandler:o amtype
pg_amop = oid:o amopfamily:o amoplefttype:o amoprighttype:o amopstrategy:h amoppurpose amopopr:o amopmethod:o amopsortfamily:o
pg_amproc = oid:o amprocfamily:o amproclefttype:o amprocrighttype:o amprocnum:h amproc:o
pg_attrdef = oid:o adrelid:o adnum:h adbin
pg_attribute = attrelid:o attname atttypid:o attstattarget:i attlen:h attnum:h attndims:i attcacheoff:i atttypmod:i attbyval:b
  attalign attstorage attcompression attnotnull:b atthasdef:b atthasmissing:b attidentity attgenerated attisdropped:b attislocal:b
  attinhcount:i attcollation:o attacl:T attoptions:T attfdwoptions:T attmissingval
pg_auth_members = roleid:o member:o grantor:o admin_option:b
pg_authid = oid:o rolname rolsuper:b rolinherit:b rolcreaterole:b rolcreatedb:b rolcanlogin:b rolreplication:b rolbypassrls:b
  rolconnlimit:i rolpassword rolvaliduntil:z
pg_cast = oid:o castsource:o casttarget:o castfunc:o castcontext castmethod
pg_class = oid:o relname relnamespace:o reltype:o reloftype:o relowner:o relam:o relfilenode:o reltablespace:o relpages:i
  reltuples:d relallvisible:i reltoastrelid:o relhasindex:b relisshared:b relpersistence relkind relnatts:h relchecks:h
  relhasrules:b relhastriggers:b relhassubclass:b relrowsecurity:b relforcerowsecurity:b relispopulated:b relreplident
  relispartition:b relrewrite:o relfrozenxid:o relminmxid:o relacl:T reloptions:T relpartbound
pg_collation = oid:o collname collnamespace:o collowner:o collprovider collisdeterministic:b collencoding:i collcollate collctype
  colliculocale collversion
pg_constraint = oid:o conname connamespace:o contype condeferrable:b condeferred:b convalidated:b conrelid:o contypid:o conindid:o
  conparentid:o confrelid:o confupdtype confdeltype confmatchtype conislocal:b coninhcount:i connoinherit:b conkey:H confkey:H
  conpfeqop:O conppeqop:O conffeqop:O confdelsetcols:H conexclop:O conbin
pg_conversion = oid:o conname connamespace:o conowner:o conforencoding:i contoencoding:i conproc:o condefault:b
pg_cursors = name statement is_holdable:b is_binary:b is_scrollable:b creation_time:z
pg_database = oid:o datname datdba:o encoding:i datlocprovider datistemplate:b datallowconn:b datconnlimit:i datfrozenxid:o
  datminmxid:o dattablespace:o datcollate datctype daticulocale datcollversion datacl:T
pg_db_role_setting = setdatabase:o setrole:o setconfig:T
pg_default_acl = oid:o defaclrole:o defaclnamespace:o defaclobjtype defaclacl:T
pg_depend = classid:o objid:o objsubid:i refclassid:o refobjid:o refobjsubid:i deptype
pg_description = objoid:o classoid:o objsubid:i description
pg_enum = oid:o enumtypid:o enumsortorder:d enumlabel
pg_event_trigger = oid:o evtname evtevent evtowner:o evtfoid:o evtenabled evttags:T
pg_extension = oid:o extname extowner:o extnamespace:o extrelocatable:b extversion extconfig:O extcondition:T
pg_foreign_data_wrapper = oid:o fdwname fdwowner:o fdwhandler:o fdwvalidator:o fdwacl:T fdwoptions:T
pg_foreign_server = oid:o srvname srvowner:o srvfdw:o srvtype srvversion srvacl:T srvoptions:T
pg_foreign_table = ftrelid:o ftserver:o ftoptions:T
pg_group = groname grosysid:o grolist:O
pg_index = indexrelid:o indrelid:o indnatts:h indnkeyatts:h indisunique:b indnullsnotdistinct:b indisprimary:b indisexclusion:b
  indimmediate:b indisclustered:b indisvalid:b indcheckxmin:b indisready:b indislive:b indisreplident:b indkey:H indcollation:O
  indclass:O indoption:H indexprs indpred
pg_indexes = schemaname tablename indexname tablespace indexdef
pg_inherits = inhrelid:o inhparent:o inhseqno:i inhdetachpending:b
pg_init_privs = objoid:o classoid:o objsubid:i privtype initprivs:T
pg_language = oid:o lanname lanowner:o lanispl:b lanpltrusted:b lanplcallfoid:o laninline:o lanvalidator:o lanacl:T
pg_largeobject_metadata = oid:o lomowner:o lomacl:T
pg_locks = locktype database:o relation:o page:i tuple:h virtualxid transactionid:o classid:o objid:o objsubid:h
  virtualtransaction pid:i mode granted:b fastpath:b waitstart:z
pg_matviews = schemaname matviewname matviewowner tablespace hasindexes:b ispopulated:b definition
pg_namespace = oid:o nspname nspowner:o nspacl:T
pg_opclass = oid:o opcmethod:o opcname opcnamespace:o opcowner:o opcfamily:o opcintype:o opcdefault:b opckeytype:o
pg_operator = oid:o oprname oprnamespace:o oprowner:o oprkind oprcanmerge:b oprcanhash:b oprleft:o oprright:o oprresult:o oprcom:o
  oprnegate:o oprcode:o oprrest:o oprjoin:o
pg_opfamily = oid:o opfmethod:o opfname opfnamespace:o opfowner:o
pg_partitioned_table = partrelid:o partstrat partnatts:h partdefid:o partattrs:H partclass:O partcollation:O partexprs
pg_policy = oid:o polname polrelid:o polcmd polpermissive:b polroles:O polqual polwithcheck
pg_prepared_statements = name statement prepare_time:z parameter_types from_sql:b generic_plans:l custom_plans:l
pg_proc = oid:o proname pronamespace:o proowner:o prolang:o procost:d prorows:d provariadic:o prosupport:o prokind prosecdef:b
  proleakproof:b proisstrict:b proretset:b provolatile proparallel pronargs:h pronargdefaults:h prorettype:o proargtypes:O
  proallargtypes:O proargmodes:T proargnames:T proargdefaults protrftypes:O prosrc probin prosqlbody proconfig:T proacl:T
pg_publication = oid:o pubname pubowner:o puballtables:b pubinsert:b pubupdate:b pubdelete:b pubtruncate:b pubviaroot:b
pg_publication_namespace = oid:o pnpubid:o pnnspid:o
pg_publication_rel = oid:o prpubid:o prrelid:o prqual prattrs:H
pg_range = rngtypid:o rngsubtype:o rngmultitypid:o rngcollation:o rngsubopc:o rngcanonical:o rngsubdiff:o
pg_rewrite = oid:o rulename ev_class:o ev_type ev_enabled is_instead:b ev_qual ev_action
pg_roles = rolname rolsuper:b rolinherit:b rolcreaterole:b rolcreatedb:b rolcanlogin:b rolreplication:b rolconnlimit:i rolpassword
  rolvaliduntil:z rolbypassrls:b rolconfig:T oid:o
pg_rules = schemaname tablename rulename definition
pg_seclabel = objoid:o classoid:o objsubid:i provider label
pg_sequence = seqrelid:o seqtypid:o seqstart:l seqincrement:l seqmax:l seqmin:l seqcache:l seqcycle:b
pg_sequences = schemaname sequencename sequenceowner data_type:o start_value:l min_value:l max_value:l increment_by:l cycle:b
  cache_size:l last_value:l
pg_settings = name setting unit category short_desc extra_desc context vartype source min_val max_val enumvals:T boot_val
  reset_val sourcefile sourceline:i pending_restart:b
pg_shadow = usename usesysid:o usecreatedb:b usesuper:b userepl:b usebypassrls:b passwd valuntil:z useconfig:T
pg_shdescription = objoid:o classoid:o description
pg_stat_activity = datid:o datname pid:i leader_pid:i usesysid:o usename application_name client_addr client_hostname
  client_port:i backend_start:z xact_start:z query_start:z state_change:z wait_event_type wait_event state backend_xid:o
  backend_xmin:o query_id:l query backend_type
pg_stat_database = datid:o datname numbackends:i xact_commit:l xact_rollback:l blks_read:l blks_hit:l tup_returned:l tup_fetched:l
  tup_inserted:l tup_updated:l tup_deleted:l conflicts:l temp_files:l temp_bytes:l deadlocks:l checksum_failures:l
  checksum_last_failure:z blk_read_time:d blk_write_time:d session_time:d active_time:d idle_in_transaction_time:d sessions:l
  sessions_abandoned:l sessions_fatal:l sessions_killed:l stats_reset:z
pg_stat_user_indexes = relid:o indexrelid:o schemaname relname indexrelname idx_scan:l idx_tup_read:l idx_tup_fetch:l
pg_stat_user_tables = relid:o schemaname relname seq_scan:l seq_tup_read:l idx_scan:l idx_tup_fetch:l n_tup_ins:l n_tup_upd:l
  n_tup_del:l n_tup_hot_upd:l n_live_tup:l n_dead_tup:l n_mod_since_analyze:l n_ins_since_vacuum:l last_vacuum:z last_autovacuum:z
  last_analyze:z last_autoanalyze:z vacuum_count:l autovacuum_count:l analyze_count:l autoanalyze_count:l
pg_statistic = starelid:o staattnum:h stainherit:b stanullfrac:d stawidth:i stadistinct:d stakind1:h stakind2:h stakind3:h
  stakind4:h stakind5:h staop1:o staop2:o staop3:o staop4:o staop5:o stacoll1:o stacoll2:o stacoll3:o stacoll4:o stacoll5:o
  stanumbers1 stanumbers2 stanumbers3 stanumbers4 stanumbers5 stavalues1 stavalues2 stavalues3 stavalues4 stavalues5
pg_statistic_ext = oid:o stxrelid:o stxname stxnamespace:o stxowner:o stxstattarget:i stxkeys:H stxkind:T stxexprs
pg_stats = schemaname tablename attname inherited:b null_frac:d avg_width:i n_distinct:d most_common_vals most_common_freqs
  histogram_bounds correlation:d most_common_elems most_common_elem_freqs elem_count_histogram
pg_subscription = oid:o subdbid:o subskiplsn subname subowner:o subenabled:b subbinary:b substream:b subtwophasestate
  subdisableonerr:b subconninfo subslotname subsynccommit subpublications:T
pg_tables = schemaname tablename tableowner tablespace hasindexes:b hasrules:b hastriggers:b rowsecurity:b
pg_tablespace = oid:o spcname spcowner:o spcacl:T spcoptions:T
pg_timezone_names = name abbrev utc_offset is_dst:b
pg_transform = oid:o trftype:o trflang:o trffromsql:o trftosql:o
pg_trigger = oid:o tgrelid:o tgparentid:o tgname tgfoid:o tgtype:h tgenabled tgisinternal:b tgconstrrelid:o tgconstrindid:o
  tgconstraint:o tgdeferrable:b tginitdeferred:b tgnargs:h tgattr:H tgargs tgqual tgoldtable tgnewtable
pg_ts_config = oid:o cfgname cfgnamespace:o cfgowner:o cfgparser:o
pg_ts_dict = oid:o dictname dictnamespace:o dictowner:o dicttemplate:o dictinitoption
pg_ts_parser = oid:o prsname prsnamespace:o prsstart:o prstoken:o prsend:o prsheadline:o prslextype:o
pg_ts_template = oid:o tmplname tmplnamespace:o tmplinit:o tmpllexize:o
pg_type = oid:o typname typnamespace:o typowner:o typlen:h typbyval:b typtype typcategory typispreferred:b typisdefined:b typdelim
  typrelid:o typsubscript:o typelem:o typarray:o typinput:o typoutput:o typreceive:o typsend:o typmodin:o typmodout:o typanalyze:o
  typalign typstorage typnotnull:b typbasetype:o typtypmod:i typndims:i typcollation:o typdefaultbin typdefault typacl:T
pg_user = usename usesysid:o usecreatedb:b usesuper:b userepl:b usebypassrls:b passwd valuntil:z useconfig:T
pg_user_mapping = oid:o umuser:o umserver:o umoptions:T
pg_user_mappings = umid:o srvid:o srvname umuser:o usename umoptions:T
pg_views = schemaname viewname viewowner definition
"""

_INFORMATION_SCHEMA: Final = """
applicable_roles = grantee role_name is_grantable
character_sets = character_set_catalog character_set_schema character_set_name character_repertoire form_of_use
  default_collate_catalog default_collate_schema default_collate_name
check_constraints = constraint_catalog constraint_schema constraint_name check_clause
column_privileges = grantor grantee table_catalog table_schema table_name column_name privilege_type is_grantable
columns = table_catalog table_schema table_name column_name ordinal_position:i column_default is_nullable data_type
  character_maximum_length:i character_octet_length:i numeric_precision:i numeric_precision_radix:i numeric_scale:i
  datetime_precision:i interval_type interval_precision:i character_set_catalog character_set_schema character_set_name
  collation_catalog collation_schema collation_name domain_catalog domain_schema domain_name udt_catalog udt_schema udt_name
  scope_catalog scope_schema scope_name maximum_cardinality:i dtd_identifier is_self_referencing is_identity identity_generation
  identity_start identity_increment identity_maximum identity_minimum identity_cycle is_generated generation_expression
  is_updatable
constraint_column_usage = table_catalog table_schema table_name column_name constraint_catalog constraint_schema constraint_name
constraint_table_usage = table_catalog table_schema table_name constraint_catalog constraint_schema constraint_name
domains = domain_catalog domain_schema domain_name data_type character_maximum_length:i character_octet_length:i
  character_set_catalog character_set_schema character_set_name collation_catalog collation_schema collation_name
  numeric_precision:i numeric_precision_radix:i numeric_scale:i datetime_precision:i interval_type interval_precision:i
  domain_default udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name maximum_cardinality:i dtd_identifier
element_types = object_catalog object_schema object_name object_type collection_type_identifier data_type
  character_maximum_length:i character_octet_length:i character_set_catalog character_set_schema character_set_name
  collation_catalog collation_schema collation_name numeric_precision:i numeric_precision_radix:i numeric_scale:i
  datetime_precision:i interval_type interval_precision:i domain_default udt_catalog udt_schema udt_name scope_catalog
  scope_schema scope_name maximum_cardinality:i dtd_identifier
enabled_roles = role_name
key_column_usage = constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name column_name
  ordinal_position:i position_in_unique_constraint:i
parameters = specific_catalog specific_schema specific_name ordinal_position:i parameter_mode is_result as_locator parameter_name
  data_type character_maximum_length:i character_octet_length:i character_set_catalog character_set_schema character_set_name
  collation_catalog collation_schema collation_name numeric_precision:i numeric_precision_radix:i numeric_scale:i
  datetime_precision:i interval_type interval_precision:i udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name
  maximum_cardinality:i dtd_identifier parameter_default
referential_constraints = constraint_catalog constraint_schema constraint_name unique_constraint_catalog unique_constraint_schema
  unique_constraint_name match_option update_rule delete_rule
routines = specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name routine_type module_catalog
  module_schema module_name udt_catalog udt_schema udt_name data_type character_maximum_length:i character_octet_length:i
  character_set_catalog character_set_schema character_set_name collation_catalog collation_schema collation_name
  numeric_precision:i numeric_precision_radix:i numeric_scale:i datetime_precision:i interval_type interval_precision:i
  type_udt_catalog type_udt_schema type_udt_name scope_catalog scope_schema scope_name maximum_cardinality:i dtd_identifier
  routine_body routine_definition external_name external_language parameter_style is_deterministic sql_data_access is_null_call
  sql_path schema_level_routine max_dynamic_result_sets:i is_user_defined_cast is_implicitly_invocable security_type
  to_sql_specific_catalog to_sql_specific_schema to_sql_specific_name as_locator created last_altered new_savepoint_level
  is_udt_dependent result_cast_from_data_type result_cast_as_locator result_cast_char_max_length:i result_cast_char_octet_length:i
  result_cast_char_set_catalog result_cast_char_set_schema result_cast_char_set_name result_cast_collation_catalog
  result_cast_collation_schema result_cast_collation_name result_cast_numeric_precision:i result_cast_numeric_precision_radix:i
  result_cast_numeric_scale:i result_cast_datetime_precision:i result_cast_interval_type result_cast_interval_precision:i
  result_cast_type_udt_catalog result_cast_type_udt_schema result_cast_type_udt_name result_cast_scope_catalog
  result_cast_scope_schema result_cast_scope_name result_cast_maximum_cardinality:i result_cast_dtd_identifier
schemata = catalog_name schema_name schema_owner default_character_set_catalog default_character_set_schema
  default_character_set_name sql_path
sequences = sequence_catalog sequence_schema sequence_name data_type numeric_precision:i numeric_precision_radix:i numeric_scale:i
  start_value minimum_value maximum_value increment cycle_option
table_constraints = constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name constraint_type
  is_deferrable initially_deferred enforced nulls_distinct
table_privileges = grantor grantee table_catalog table_schema table_name privilege_type is_grantable with_hierarchy
tables = table_catalog table_schema table_name table_type self_referencing_column_name reference_generation
  user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed commit_action
triggers = trigger_catalog trigger_schema trigger_name event_manipulation event_object_catalog event_object_schema
  event_object_table action_order:i action_condition action_statement action_orientation action_timing action_reference_old_table
  action_reference_new_table action_reference_old_row action_reference_new_row created
views = table_catalog table_schema table_name view_definition check_option is_updatable is_insertable_into is_trigger_updatable
  is_trigger_deletable is_trigger_insertable_into
"""


def _relations(text: str) -> dict[str, dict[str, str]]:
    found = {}
    for entry in re.split(r"\n(?=\w+ = )", text.strip()):
        name, _, columns = entry.partition(" = ")
        pairs = (word.partition(":") for word in columns.split())
        found[name] = {column: KINDS[kind or "t"] for column, _, kind in pairs} | {"tableoid": KINDS["o"]}
    return found


RELATIONS: Final = {PG_CATALOG: _relations(_PG_CATALOG), INFORMATION_SCHEMA: _relations(_INFORMATION_SCHEMA)}
"""By schema and name: the columns with DuckDB's types."""


def table_name(schema: str, name: str) -> str:
    """What the relation is called in SCHEMA."""
    return f"info_{name}" if schema == INFORMATION_SCHEMA else name


def table_statements() -> list[str]:
    """What makes all of them, empty."""
    found = [f"CREATE SCHEMA {SCHEMA}"]
    for schema, relations in RELATIONS.items():
        for name, columns in relations.items():
            listed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            found.append(f"CREATE TABLE {SCHEMA}.{table_name(schema, name)} ({listed})")
    return [*found, f"CREATE TABLE {SCHEMA}._objects (oid UINTEGER, name VARCHAR, definition VARCHAR, bytes BIGINT)"]


_OF_OBJECT: Final = (
    "(SELECT any_value(definition) FROM _catalog._objects x WHERE x.oid::VARCHAR = o::VARCHAR OR x.name = o::VARCHAR)"
)
_BYTES: Final = "coalesce((SELECT any_value(bytes) FROM _catalog._objects x WHERE x.oid::VARCHAR = o::VARCHAR OR x.name = o::VARCHAR), 0)"

_DESCRIPTION: Final = (
    "(SELECT any_value(x.description) FROM _catalog.pg_description x "
    "WHERE x.objoid::VARCHAR = o::VARCHAR AND x.objsubid = {})"
)
_CONSTANT: Final = {
    "true": """pg_table_is_visible(o) pg_type_is_visible(o) pg_function_is_visible(o) pg_opclass_is_visible(o) pg_operator_is_visible(o)
        pg_collation_is_visible(o) pg_conversion_is_visible(o) pg_ts_config_is_visible(o) pg_statistics_obj_is_visible(o)
        has_function_privilege(o,p) pg_has_role(o,p) pg_has_role(u,o,p)""",
    "false": """pg_relation_is_publishable(o) pg_column_is_updatable(o,c,b) pg_is_other_temp_schema(o) row_security_active(o)
        has_sequence_privilege(o,p) has_tablespace_privilege(o,p)""",
    "NULL::VARCHAR": """pg_get_expr(e,o) pg_get_expr(e,o,p) pg_get_ruledef(o) pg_get_ruledef(o,p) pg_get_triggerdef(o)
        pg_get_triggerdef(o,p)
        pg_get_functiondef(o) pg_get_function_arguments(o) pg_get_function_identity_arguments(o) pg_get_function_result(o)
        pg_get_partkeydef(o) pg_get_serial_sequence(t,c) pg_get_statisticsobjdef_columns(o) pg_collation_for(x) inet_server_addr()
        inet_client_addr() shobj_description(o,c)""",
    _DESCRIPTION.format("0"): "obj_description(o) obj_description(o,c)",
    _DESCRIPTION.format("n"): "col_description(o,n)",
    "NULL::INTEGER": "inet_server_port() pg_sequence_last_value(o) pg_get_replica_identity_index(o)",
    "'UTF8'": "pg_encoding_to_char(n) pg_client_encoding() getdatabaseencoding()",
    "0": "pg_my_temp_schema() pg_indexes_size(o) pg_tablespace_size(o) pg_relation_is_updatable(o,b)",
    "''": "pg_tablespace_location(o)",
    "current_timestamp": "pg_postmaster_start_time() pg_conf_load_time()",
    "lower(p) = 'select'": """has_table_privilege(o,p) has_table_privilege(u,o,p) has_column_privilege(o,c,p)
        has_any_column_privilege(o,p)""",
    "lower(p) = 'usage'": "has_schema_privilege(o,p) has_schema_privilege(u,o,p)",
    "lower(p) = 'connect'": "has_database_privilege(o,p) has_database_privilege(u,o,p)",
    _OF_OBJECT: "pg_get_viewdef(o) pg_get_viewdef(o,p) pg_get_indexdef(o) pg_get_constraintdef(o) pg_get_constraintdef(o,p)",
    _BYTES: "pg_relation_size(o) pg_table_size(o) pg_total_relation_size(o)",
}
"""Functions by what they answer."""

_FUNCTIONS: Final = """
pg_get_userbyid(o) = (SELECT any_value(rolname) FROM _catalog.pg_roles)
pg_get_indexdef(o,c,p) = (SELECT any_value(a.attname) FROM _catalog.pg_attribute a WHERE a.attrelid = o AND a.attnum = c)
pg_relation_filenode(o) = o
pg_size_pretty(n) = format_bytes(n::BIGINT)
pg_database_size(d) = (SELECT coalesce(sum(bytes), 0)::BIGINT FROM _catalog._objects)
quote_ident(t) = CASE WHEN regexp_full_match(t, '[a-z_][a-z0-9_$]*') THEN t ELSE '"' || replace(t, '"', '""') || '"' END
quote_literal(t) = chr(39) || replace(t, chr(39), chr(39) || chr(39)) || chr(39)
parse_ident(t) = list_transform(string_split(t, '.'), lambda x: trim(x, '"'))
array_remove(a,x) = list_filter(a, lambda y: y IS DISTINCT FROM x)
pg_char_to_encoding(t) = CASE WHEN lower(t) IN ('utf8', 'utf-8', 'unicode') THEN 6 ELSE -1 END
array_lower(a,d) = CASE WHEN len(a) > 0 THEN 1 END
array_upper(a,d) = CASE WHEN len(a) > 0 THEN len(a) END
to_regclass(t) = (SELECT any_value(x.oid) FROM _catalog._objects x WHERE x.name = trim(replace(t::VARCHAR, 'public.', ''), '"') OR lower(x.name) = lower(replace(t::VARCHAR, 'public.', '')) OR x.oid::VARCHAR = t::VARCHAR)
regclass_name(o) = coalesce((SELECT any_value(x.name) FROM _catalog._objects x WHERE x.oid::VARCHAR = o::VARCHAR), o::VARCHAR)
to_regtype(t) = (SELECT any_value(x.oid) FROM _catalog._types x WHERE x.sql_name = lower(t) OR x.typname = lower(t))
regtype_name(o) = coalesce((SELECT any_value(x.sql_name) FROM _catalog._types x WHERE x.oid::VARCHAR = o::VARCHAR), o::VARCHAR)
to_regnamespace(t) = (SELECT any_value(oid) FROM _catalog.pg_namespace WHERE nspname = t)
format_type(o,m) = (SELECT any_value(CASE WHEN t.oid = 1700 AND m > 4 THEN 'numeric(' || ((m - 4) // 65536) || ',' || ((m - 4) % 65536) || ')' ELSE t.sql_name END) FROM _catalog._types t WHERE t.oid = o)
"""  # noqa: E501


def _macros() -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    written = [re.match(r"(\w+)\(([^)]*)\) = (.+)", line) for line in _FUNCTIONS.strip().splitlines()]
    calls = [(each[1], each[2], each[3]) for each in written if each is not None]
    for answer, names in _CONSTANT.items():
        calls += [(name, arguments, answer) for name, arguments in re.findall(r"(\w+)\(([^)]*)\)", names)]
    for name, arguments, body in calls:
        found.setdefault(name, {})[len(arguments.split(",")) if arguments else 0] = f"({arguments}) AS {body}"
    return found


MACROS: Final = _macros()
"""By name and number of arguments: what stands behind CREATE MACRO and the name."""


def macro_statements() -> list[str]:
    """They come behind the tables that they read."""
    return [f"CREATE MACRO {SCHEMA}.{name}{', '.join(overloads.values())}" for name, overloads in MACROS.items()]
