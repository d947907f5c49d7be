"""Every limit of the system, named once, with the relations between them asserted at import.

A length, count or size that comes from outside is compared with one of these before anything is allocated for it.
"""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# Names. Kafka's topic rule, so that a stream can be reached through the Kafka protocol under its own name.
STREAM_NAME_CHARS_MAX: Final = 249
STREAMS_MAX: Final = 100_000
SHARDS_PER_STREAM_MAX: Final = 4_096

# One record, as the user hands it over: key + value + headers.
RECORD_BYTES_MAX: Final = 8 * MIB
KEY_BYTES_MAX: Final = 64 * KIB
HEADERS_PER_RECORD_MAX: Final = 256
HEADER_BYTES_MAX: Final = 64 * KIB

# One batch: records of one shard that travel and are stored together.
BATCH_RECORDS_MAX: Final = 1 << 20
PAYLOAD_RAW_BYTES_MAX: Final = 16 * MIB
PAYLOAD_STORED_BYTES_MAX: Final = 16 * MIB
# Below this a payload is stored as it is: zstd would cost more than it saves.
PAYLOAD_COMPRESS_MIN: Final = 1 * KIB
# Up to this the whole payload is one zstd frame; above it each Arrow buffer is its own, so columns can be read alone.
PAYLOAD_WHOLE_ZSTD_MAX: Final = 64 * KIB

# One schema. Names as long as PostgreSQL, Spark and Parquet readers take them without trouble.
SCHEMA_FIELDS_MAX: Final = 2_000
SCHEMA_ALIASES_MAX: Final = 2_000
SCHEMA_DEPTH_MAX: Final = 16
SCHEMA_NAME_CHARS_MAX: Final = 255
SCHEMA_BYTES_MAX: Final = 512 * KIB
# What a row, or an item of a list or a map, takes although all of it is null: lists and bytes of fixed size do.
SCHEMA_ROW_BYTES_MAX: Final = 64 * KIB
# JSON for rows, from clients that know nothing of schemas, takes long to read, and others wait for the same thread.
# Twice what a producer sends that knows the stream from before it had a schema.
JSON_BATCH_BYTES_MAX: Final = 2 * MIB
JSON_BATCH_RECORDS_MAX: Final = 1 << 16
# What they become: `{}` may be a row of two thousand columns. No batch of rows is larger.
JSON_ROWS_BYTES_MAX: Final = PAYLOAD_RAW_BYTES_MAX
# Names in one object of JSON: a row has no more than its fields and aliases, but a map may have many.
JSON_OBJECT_NAMES_MAX: Final = 1 << 16
# What is remembered of each kind of thing that is made of schemas, the schemas themselves among them.
KEPT_BYTES_MAX: Final = 64 * MIB
# Versions of one stream's schema.
SCHEMA_VERSIONS_MAX: Final = 1_000
# Barriers of one stream, one for each shard in each change of their number: doubling them again and again needs half of
# these, one more at a time is possible a hundred times.
BARRIERS_PER_STREAM_MAX: Final = 2 * SHARDS_PER_STREAM_MAX
# Columns that make up the key of a row, and columns whose values are looked up by filters.
KEY_FIELDS_MAX: Final = 8
INDEX_FIELDS_MAX: Final = 8

# One predicate, as text; together they keep reading any text under 50 ms, also on a slow core. The depth counts
# brackets, CASE and signs.
PREDICATE_BYTES_MAX: Final = 16 * KIB
PREDICATE_TOKENS_MAX: Final = 1_000
# The same without literals and commas, so that a list of values may be long.
PREDICATE_WORDS_MAX: Final = 300
PREDICATE_DEPTH_MAX: Final = 32
# A pattern of LIKE is matched in linear time, and every character of it is a factor.
PREDICATE_PATTERN_CHARS_MAX: Final = 256
# Each || may add the bytes of a whole column to what a batch needs in memory.
PREDICATE_JOINS_MAX: Final = 8

# A default is repeated for every row that was written before its field was there.
SCHEMA_DEFAULT_BYTES_MAX: Final = 1 * KIB
# What the rows of a batch may grow by at once when they are read in another schema, or written as text.
PROMOTED_BYTES_MAX: Final = 256 * MIB
FORMATTED_BYTES_MAX: Final = 256 * MIB
# An Avro file that is read: its blocks, and all of it, once they are decompressed.
AVRO_BLOCK_BYTES_MAX: Final = 16 * MIB
AVRO_FILE_BYTES_MAX: Final = 1024 * MIB
# A row group of a Parquet file that is read, decompressed. Most writers make groups of some hundred MiB.
PARQUET_GROUP_BYTES_MAX: Final = 2048 * MIB
# A column of a user's table once its dictionary, or its runs, are unpacked.
UNPACKED_BYTES_MAX: Final = 1024 * MIB

# One flush: what becomes durable together.
FLUSH_BYTES_MAX: Final = 64 * MIB
FLUSH_BATCHES_MAX: Final = 8_192
COMMAND_BYTES_MAX: Final = 1 * MIB
# What is known of a batch without its payload: bounds of so many columns, each at most so long, and filters of the key
# and of indexed columns. Batches of fewer records and bytes than these have none: they wait to be merged.
STATISTICS_BYTES_MAX: Final = 1 * MIB
STATISTICS_RANGES_MAX: Final = 8
STATISTICS_BOUND_BYTES_MAX: Final = 16
STATISTICS_RECORDS_MIN: Final = 1_024
STATISTICS_STORED_BYTES_MIN: Final = 32 * KIB
FILTER_BYTES_MAX: Final = 512 * KIB
# A batch of rows is noted by columns, which can then be read alone, if it is this long and so is each in the mean: less
# is read as fast as a part of it.
PIECES_STORED_BYTES_MIN: Final = 64 * KIB
PIECE_BYTES_MIN: Final = 256
# What may wait for the next flush; more than this and appends are told to wait.
PENDING_BYTES_MAX: Final = 64 * MIB

# One block file.
BLOCK_BYTES_MIN: Final = 64 * KIB
BLOCK_BYTES_DEFAULT: Final = 128 * MIB
BLOCK_BYTES_MAX: Final = 4 * 1024 * MIB

# One cold file. Its records, uncompressed: who looks for one has all of them in memory, and if one is erased the others
# are one flush. Its bytes: what Parquet adds to records that do not compress is little.
COLD_RAW_BYTES_MAX: Final = 32 * MIB
COLD_STORED_BYTES_MAX: Final = 48 * MIB
# Records of cold files that are kept as batches for whoever reads on, at most so many bytes.
COLD_READS_BYTES_MAX: Final = 2 * COLD_RAW_BYTES_MAX
# What one task of the job that makes cold files goes through, as stored, and how many files it makes of it at most.
COLD_TASK_BYTES: Final = 64 * MIB
COLD_TASK_FILES_MAX: Final = 4_096
# Fewer bytes than this, as stored, are not worth a file of their own yet.
COLD_FILE_BYTES_MIN: Final = 1 * MIB
# Tasks in one answer to who asks what there is to do.
COLD_TASKS_MAX: Final = 1_000

# Room on the disk: with less free than this nothing is appended; and what is kept to free some when there is none.
FREE_BYTES_MIN_DEFAULT: Final = 256 * MIB
BALLAST_BYTES_DEFAULT: Final = 64 * MIB

# Exactly once: how many (sequence, offset) pairs the ledger remembers per producer and shard, and for how long.
PRODUCER_RECENT_MAX: Final = 8
PRODUCER_IN_FLIGHT_MAX: Final = 5
PRODUCER_IDLE_US_MAX: Final = 7 * 24 * 3600 * 1_000_000

# Order across shards: how long after a moment the next one is noted, if something is written; and at least, if a reader
# asks for one. A window that readers may ask for is not smaller, else it could not be kept.
MOMENT_US_MAX: Final = 60 * 1_000_000
MOMENT_US_MIN: Final = 100_000
WINDOW_US_MIN: Final = MOMENT_US_MAX
WINDOW_US_MAX: Final = 10 * 365 * 24 * 3600 * 1_000_000
# Rows of one batch of a sequence.
SEQUENCE_ROWS_MAX: Final = 1_000_000

# One message of the native protocol. Before the peer has said hello it may send only a small one.
MESSAGE_BYTES_MAX: Final = 24 * MIB
MESSAGE_BYTES_MAX_BEFORE_HELLO: Final = 4 * KIB
MESSAGE_HEADER_BYTES_MAX: Final = 2 * MIB
# Incomplete messages: so much of each is always taken, the rest of all clients of a server shares one budget.
RECEIVE_SHARE_BYTES: Final = 256 * KIB
RECEIVE_BYTES_MAX: Final = 256 * MIB
# Whoever began a message completes it within this time, unless it is the server that does not read.
RECEIVE_SECONDS_MAX: Final = 60
APPEND_BATCHES_MAX: Final = 4_096
# What the batches of one append are once they are decompressed: thousands of small ones may be the largest there are.
APPEND_RAW_BYTES_MAX: Final = 8 * PAYLOAD_RAW_BYTES_MAX
# One client's calls that are not answered yet; with so many it is not read on.
CALLS_IN_FLIGHT_MAX: Final = 16
# One answer to `list`: streams as far as they fit, at least one.
LIST_BYTES_MAX: Final = 512 * KIB
# One client in an answer to `connections`: its name, the name of a stream, an address, and numbers.
CLIENT_NAME_CHARS_MAX: Final = 200
CONNECTION_INFO_BYTES_MAX: Final = 2 * KIB
# The text of an error that crosses the wire, and the texts of one message together.
ERROR_TEXT_CHARS_MAX: Final = 1_000
ERROR_TEXTS_CHARS_MAX: Final = 128 * KIB
SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 1_024
# A follower with more records than this still to get is slow. So is one that has something to get and has taken nothing
# for this long: a busy reader is without credit for moments.
FOLLOWER_SLOW_RECORDS: Final = 10_000
FOLLOWER_SLOW_SECONDS: Final = 5
CREDIT_BYTES_MAX: Final = 256 * MIB
# What a batch on its way to a reader counts beside its payload, so that tiny ones are limited too.
BATCH_OVERHEAD_BYTES: Final = 128

# Reading: how much one read of a block brings in, and how many ledger rows are looked at in one query.
READ_BYTES_MAX: Final = 1 * MIB
# Bytes read from blocks a moment ago that are kept for the next who asks.
RECENT_READS_BYTES_MAX: Final = 8 * MIB
# Batches from these reads, for others who read the same at about the same time. A server delivers some 1.5 GB/s, to
# fifty readers 30 MB/s each: so far apart are those of whom one began, or was held up, two seconds longer.
SHARED_READS_BYTES_MAX: Final = 64 * MIB
# And as long as nobody does.
SHARED_READS_BYTES_MIN: Final = RECENT_READS_BYTES_MAX
# And statistics, which whoever looks for a record asks of every batch.
RECENT_STATISTICS_BYTES_MAX: Final = 32 * MIB
READ_ENTRIES_MAX: Final = 256
# One record in the form that a reader wants it in, which may be larger than the one it was written in.
READ_RECORD_BYTES_MAX: Final = PAYLOAD_RAW_BYTES_MAX

# HTTP. The head of a request, which may carry a cursor, and how long it may take to come.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB
HTTP_HEAD_LINES_MAX: Final = 128
HTTP_HEAD_SECONDS_MAX: Final = 10
# Before anybody is known: so much of each unfinished head is always taken, the rest of all of them shares one budget.
HTTP_HEAD_SHARE_BYTES: Final = 4 * KIB
HTTP_HEADS_BYTES_MAX: Final = 2 * MIB
# A body once it is decompressed: its rows are written together, so all of them are in memory at once.
HTTP_BODY_BYTES_MAX: Final = 32 * MIB
# So much of each body is always taken, the rest of all of them shares one budget.
HTTP_BODY_SHARE_BYTES: Final = 64 * KIB
HTTP_BODIES_BYTES_MAX: Final = 256 * MIB
# What of a body may have come that nobody has taken yet; of one that is large already, and is counted for it.
HTTP_BODY_AHEAD_BYTES: Final = 64 * KIB
HTTP_LARGE_BODY_AHEAD_BYTES: Final = 256 * KIB
# Bodies of administration: the largest has a schema.
HTTP_CALL_BYTES_MAX: Final = 2 * MIB
# An answer that says where it ends before it begins is held in memory.
HTTP_PAGE_BYTES_MAX: Final = 8 * MIB
# What is made at once of an answer of any length, about, and how long its reader may take none of it.
HTTP_PIECE_BYTES: Final = 1 * MIB
# What all answers under way may hold; beyond it they are made in small pieces, and keep nothing between two of them.
HTTP_ANSWERS_BYTES_MAX: Final = 64 * MIB
HTTP_PIECE_BYTES_MIN: Final = 32 * KIB
HTTP_SEND_SECONDS_MAX: Final = 60
# Tails of wider streams would say as many offsets with every record.
HTTP_TAIL_SHARDS_MAX: Final = 1_024
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255
# One group of readers: its members, and how many shards change hands, or cursors move, in one step of the ledger.
GROUPS_MAX: Final = 10_000
GROUP_MEMBERS_MAX: Final = 1_000
GROUP_CHANGE_UNITS_MAX: Final = 20_000
# How much longer than retention a group keeps what it has not read, if it does not say, and at most: one that never
# comes back must not keep it for ever.
GROUP_HOLD_US_DEFAULT: Final = 7 * 24 * 3600 * 1_000_000
GROUP_HOLD_US_MAX: Final = 30 * 24 * 3600 * 1_000_000
# Requests of one client's members that wait for an answer: as long as nothing changes, one of each member does.
MEMBER_REQUESTS_MAX: Final = 4_096
# Of a shard that is spread over the members of a group: ranges that are being read, and those that are done while one
# before them is not.
SPREAD_OPEN_RANGES_MAX: Final = 1_024
SPREAD_DONE_RANGES_MAX: Final = 1_024
# What one member of a group that spreads has to read at a time.
SPREAD_LEASES_MAX: Final = 16

# One transaction: what its commit names, which is a command; its bytes, which stay on the disk until it ends; its time.
TRANSACTION_BATCHES_MAX: Final = 8_192
TRANSACTION_CURSORS_MAX: Final = 8_192
TRANSACTION_GROUPS_MAX: Final = 64
TRANSACTION_BYTES_MAX: Final = 8 * 1024 * MIB
TRANSACTION_SECONDS_MAX: Final = 900
# All that are open: their number, their batches, of which each is remembered, and the bytes that they hold on the disk.
TRANSACTIONS_OPEN_MAX: Final = 10_000
TRANSACTIONS_BATCHES_MAX: Final = 1 << 17
TRANSACTIONS_BYTES_MAX: Final = 16 * 1024 * MIB
# How long one that ended is remembered, and how many: a commit that is repeated meanwhile gets its offsets again. There
# may be hundreds in a second, and each is a row.
TRANSACTION_REMEMBERED_US_MAX: Final = 24 * 3600 * 1_000_000
TRANSACTIONS_REMEMBERED_MAX: Final = 1_000_000
# Names of writers in use at a time.
WRITERS_MAX: Final = 10_000
# Numbered writes of jobs: how many of each are remembered, the newest; of how many jobs, those that were seen last; and
# how long the name of one may be.
DELIVERIES_PER_JOB_MAX: Final = 64
DELIVERY_JOBS_MAX: Final = 100_000
DELIVERY_JOB_CHARS_MAX: Final = 256

# Who may do what. A name of a principal may be the subject of a certificate.
PRINCIPAL_NAME_CHARS_MAX: Final = 128
# Tokens, rules and quotas of a log, together: all are in the memory of whoever serves it.
ACCESS_ROWS_MAX: Final = 20_000
ACCESS_ROW_BYTES_MAX: Final = 8 * KIB
# What a token may be restricted to, and the rules that may come with it.
SCOPES_PER_TOKEN_MAX: Final = 16
# Until a client is known it may make us hold this much, its messages and ours together.
CONNECTION_BYTES_MAX_BEFORE_HELLO: Final = 64 * KIB

CURSOR_TEXT_CHARS_MAX: Final = 128 * KIB
# A stream says of so many restores where its shards ended in the backup. Cursors that are older are refused.
RESTORED_EPOCHS_MAX: Final = 16

assert RECORD_BYTES_MAX <= READ_RECORD_BYTES_MAX <= PAYLOAD_RAW_BYTES_MAX <= MESSAGE_BYTES_MAX
assert PAYLOAD_STORED_BYTES_MAX + MESSAGE_HEADER_BYTES_MAX <= MESSAGE_BYTES_MAX
assert PAYLOAD_STORED_BYTES_MAX + STATISTICS_BYTES_MAX <= FLUSH_BYTES_MAX
assert PENDING_BYTES_MAX >= PAYLOAD_STORED_BYTES_MAX + STATISTICS_BYTES_MAX
# A producer may resend everything it has in flight and must get the original offsets for all of it.
assert PRODUCER_IN_FLIGHT_MAX <= PRODUCER_RECENT_MAX
# A schema travels in a command, and in the header of a message.
assert min(COMMAND_BYTES_MAX, MESSAGE_HEADER_BYTES_MAX) >= 2 * SCHEMA_BYTES_MAX
# One record of any stream can be read in another schema, and all the text of its values written.
assert min(PROMOTED_BYTES_MAX, FORMATTED_BYTES_MAX) > RECORD_BYTES_MAX * 6
assert SCHEMA_DEFAULT_BYTES_MAX < SCHEMA_BYTES_MAX
# What is made of the largest schema is kept too: it may take fifty times as many bytes.
assert 50 * SCHEMA_BYTES_MAX < KEPT_BYTES_MAX
assert AVRO_BLOCK_BYTES_MAX <= AVRO_FILE_BYTES_MAX
# The largest filter fits beside the ranges. Statistics are little beside what they may describe.
assert FILTER_BYTES_MAX < STATISTICS_BYTES_MAX <= PAYLOAD_RAW_BYTES_MAX // 8
assert PAYLOAD_COMPRESS_MIN < PAYLOAD_WHOLE_ZSTD_MAX < PAYLOAD_RAW_BYTES_MAX
# One message can always be completed from what is kept back for the first in line.
assert RECEIVE_SHARE_BYTES < MESSAGE_BYTES_MAX < RECEIVE_BYTES_MAX
# A character is at most 4 bytes; beside its text an error is a code and a place, and every batch has an offset.
assert 4 * ERROR_TEXTS_CHARS_MAX + 32 * APPEND_BATCHES_MAX < MESSAGE_HEADER_BYTES_MAX
# The last stream of a list may be the widest.
assert LIST_BYTES_MAX + 32 * SHARDS_PER_STREAM_MAX < MESSAGE_HEADER_BYTES_MAX
# A character is at most 4 bytes.
assert 4 * CLIENT_NAME_CHARS_MAX + STREAM_NAME_CHARS_MAX + 512 <= CONNECTION_INFO_BYTES_MAX <= LIST_BYTES_MAX
# An answer about the widest stream: two offsets for each shard, one for each restore, its barriers, names and schema.
assert (
    9 * (2 + RESTORED_EPOCHS_MAX) * SHARDS_PER_STREAM_MAX
    + 9 * BARRIERS_PER_STREAM_MAX
    + 4 * SCHEMA_NAME_CHARS_MAX * (KEY_FIELDS_MAX + INDEX_FIELDS_MAX)
    + SCHEMA_BYTES_MAX
    + 4 * KIB
    < MESSAGE_HEADER_BYTES_MAX
)
# The rows of a body are one flush, whatever they become; and a few bodies do not use up what all share.
assert HTTP_BODY_BYTES_MAX <= PENDING_BYTES_MAX // 2
assert 4 * HTTP_BODY_BYTES_MAX <= HTTP_BODIES_BYTES_MAX
assert SCHEMA_BYTES_MAX < HTTP_CALL_BYTES_MAX
assert HTTP_HEAD_SHARE_BYTES < HTTP_HEAD_BYTES_MAX and 16 * HTTP_HEAD_BYTES_MAX <= HTTP_HEADS_BYTES_MAX
# The cursor of the widest stream that can be followed fits into the head of the request that goes on.
assert 20 * HTTP_TAIL_SHARDS_MAX + 1 * KIB < HTTP_HEAD_BYTES_MAX
# A change of owners is a command: of each shard, two ids and a number.
assert 32 * GROUP_CHANGE_UNITS_MAX <= COMMAND_BYTES_MAX
# A commit is a command too: of each staged batch ten numbers, its summary if there is room, and cursors.
assert 72 * TRANSACTION_BATCHES_MAX + 32 * TRANSACTION_CURSORS_MAX < COMMAND_BYTES_MAX - 64 * KIB
assert TRANSACTION_GROUPS_MAX * (STREAM_NAME_CHARS_MAX + 32) < 64 * KIB
assert TRANSACTION_BATCHES_MAX <= FLUSH_BATCHES_MAX and TRANSACTION_BATCHES_MAX <= TRANSACTIONS_BATCHES_MAX
assert TRANSACTION_BYTES_MAX <= TRANSACTIONS_BYTES_MAX
assert TRANSACTION_SECONDS_MAX * 1_000_000 < TRANSACTION_REMEMBERED_US_MAX
assert BLOCK_BYTES_MIN <= BLOCK_BYTES_DEFAULT <= BLOCK_BYTES_MAX
# What is left of a cold file is stored anew in one flush, compressed or not. The largest batch fits into one.
assert PAYLOAD_RAW_BYTES_MAX <= COLD_RAW_BYTES_MAX < COLD_STORED_BYTES_MAX <= FLUSH_BYTES_MAX
# What was taken before the watermark was met still has room: all that waits, and a flush that is being written.
assert PENDING_BYTES_MAX + FLUSH_BYTES_MAX < FREE_BYTES_MIN_DEFAULT
