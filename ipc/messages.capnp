# Every message between the daemon and a worker. Both transports carry these, one message in one record.
# A field's number is never reused; the protocol version in Hello changes when an old peer would misread a new one.
@0xb1c9a7d3e5f20864;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("bulkhead::ipc::wire");

struct Message {
  union {
    # worker -> daemon
    hello @0 :Hello;
    progress @1 :Progress;
    ready @2 :Ready;
    accepted @3 :Accepted;
    tokens @4 :TokenBatch;
    finished @5 :Finished;
    failed @6 :Failed;
    tokenized @7 :Tokenized;
    detokenized @8 :Detokenized;
    embedded @9 :Embedded;
    stats @10 :Stats;
    pong @11 :Ping;
    fatal @12 :Fatal;
    drained @13 :Void;
    vaultOffer @25 :VaultOffer;
    # daemon -> worker
    submit @14 :Submit;
    cancel @15 :Cancel;
    tokenize @16 :Tokenize;
    detokenize @17 :Detokenize;
    embed @18 :Embed;
    ping @19 :Ping;
    vault @20 :Vault;
    drain @21 :Void;
    shutdown @22 :Void;
    profile @23 :Void;     # time the kernels of one step; the figures come with the next Stats
    settled @26 :Void;     # to who was promoted while its predecessor's work was still on the device: it is not any more
    promote @24 :Promote;  # to a standby: serve from now on. Answered by a second Ready, with Progress before it if that takes time
  }
}

struct Hello {            # the worker's first message
  protocol @0 :UInt32;
  pid @1 :UInt32;
  build @2 :Text;
}

struct Progress {         # while a model loads
  stage @0 :Text;         # "reading weights", "compiling pipelines", "warming up"
  done @1 :UInt64;
  total @2 :UInt64;
}

struct Ready {            # the model is loaded and one forward pass has run
  modelName @0 :Text;
  architecture @1 :Text;
  device @2 :Text;
  numericsId @3 :Text;
  contextLimit @4 :UInt32;      # tokens that one sequence may have
  vocabularySize @5 :UInt32;
  kvCacheTokens @6 :UInt64;     # tokens that fit in the KV cache, all sequences together
  weightBytes @7 :UInt64;
  loadMilliseconds @8 :UInt64;
  hasChatTemplate @9 :Bool;
  chatTemplate @10 :Text;       # the recognised form's name, or why there is none
  optimizations @11 :List(Optimization);
  vault @12 :VaultReport;
}

enum VaultState {
  off @0;                       # nothing of this process can be taken over; `reason` says why
  kept @1;                      # loaded, and offered to a successor
  imported @2;                  # taken over from a predecessor, and there for a successor
  waiting @3;                   # loaded; VaultOffer follows once there is room for its descriptors
}

struct VaultReport {
  state @0 :VaultState;
  reason @1 :Text;              # why it is off, or why KV pages are not kept
  importMicroseconds @2 :UInt64;  # mapping the predecessor's memory
  checkMicroseconds @3 :UInt64;   # the weights' checksum on the device
  adoptMicroseconds @4 :UInt64;   # reading the directory of KV pages
  pagesAdopted @5 :UInt64;        # full KV pages that need not be computed again
  pagesWithheld @6 :UInt64;       # that are not written to before Settled: the predecessor's last steps may
}

struct Optimization {
  name @0 :Text;
  active @1 :Bool;
  reason @2 :Text;        # why it is not active
}

struct ChatMessage {
  role @0 :Text;
  content @1 :Text;
}

struct Sampling {
  temperature @0 :Float32 = 1.0;
  topP @1 :Float32 = 1.0;
  topK @2 :UInt32 = 0;          # 0: all
  minP @3 :Float32 = 0.0;
  repetitionPenalty @4 :Float32 = 1.0;
  frequencyPenalty @5 :Float32 = 0.0;
  presencePenalty @6 :Float32 = 0.0;
  seed @7 :UInt64;
}

struct Submit {
  request @0 :UInt64;
  prompt :union {
    text @1 :Text;
    tokens @2 :List(UInt32);
    chat @3 :List(ChatMessage);
  }
  sampling @4 :Sampling;
  maxTokens @5 :UInt32;         # 0: until the context is full
  stop @6 :List(Text);
  logprobs @7 :Int32 = -1;      # -1: none; n: the chosen token's and the n best
  ignoreEos @8 :Bool;
  acceptedTokens @9 :List(UInt32);  # generated before and already sent: a resumed request goes on after them
}

struct Accepted {
  request @0 :UInt64;
  promptTokens @1 :List(UInt32);
  maxTokens @2 :UInt32;         # resolved: what is asked, or what the context leaves
}

struct TopLogprob {
  token @0 :UInt32;
  logprob @1 :Float32;
  bytes @2 :Data;
}

struct TokenLogprob {
  logprob @0 :Float32;
  bytes @1 :Data;               # of this token alone; may be part of a character
  top @2 :List(TopLogprob);     # best first
}

struct SequenceTokens {
  request @0 :UInt64;
  firstIndex @1 :UInt32;        # index of tokens[0] among the request's generated tokens
  tokens @2 :List(UInt32);
  text @3 :Data;                # whole UTF-8 characters released by these tokens; may be empty
  logprobs @4 :List(TokenLogprob);  # empty, or one for each token
}

struct TokenBatch {             # one for each step, all sequences
  step @0 :UInt64;
  sequences @1 :List(SequenceTokens);
}

enum FinishReason {
  stop @0;                      # end of text or a stop string
  length @1;                    # max_tokens or the context limit
  cancelled @2;
}

struct Finished {
  request @0 :UInt64;
  reason @1 :FinishReason;
  text @2 :Data;                # what detokenisation and stop strings had held back
  promptTokens @3 :UInt32;
  completionTokens @4 :UInt32;
  prefillMicroseconds @5 :UInt64;
  decodeMicroseconds @6 :UInt64;
  cachedTokens @7 :UInt32;      # of the prompt, taken over from the prefix cache
}

enum FailureCode {
  invalidRequest @0;            # 400
  contextExceeded @1;           # 400
  unsupported @2;               # 400: no chat template, for one
  resourceExhausted @3;         # 429 or 503
  internal @4;                  # 500
}

struct Failed {
  request @0 :UInt64;
  code @1 :FailureCode;
  message @2 :Text;
  parameter @3 :Text;           # the request's field, where one is to blame
}

struct Cancel {
  request @0 :UInt64;
}

struct Tokenize {
  request @0 :UInt64;
  text @1 :Text;
  addSpecial @2 :Bool;          # BOS/EOS as the model wants
  parseSpecial @3 :Bool;        # special tokens' text counts as the token
}

struct Tokenized {
  request @0 :UInt64;
  tokens @1 :List(UInt32);
}

struct Detokenize {
  request @0 :UInt64;
  tokens @1 :List(UInt32);
}

struct Detokenized {
  request @0 :UInt64;
  text @1 :Data;
}

struct Embed {
  request @0 :UInt64;
  tokens @1 :List(UInt32);
}

struct Embedded {
  request @0 :UInt64;
  values @1 :List(Float32);
}

struct Counter {
  name @0 :Text;                # a Prometheus name without the prefix "bulkhead_worker_"
  value @1 :Float64;
}

struct Stats {
  steps @0 :UInt64;
  activeSequences @1 :UInt32;
  waitingSequences @2 :UInt32;
  kvPagesUsed @3 :UInt64;
  kvPagesTotal @4 :UInt64;
  counters @5 :List(Counter);
}

struct Ping {
  nonce @0 :UInt64;
}

struct VaultOffer {             # worker -> daemon, before Ready, or after it where that said `waiting`:
                                # the descriptors that were sent before this
  epoch @0 :UInt64;             # also the tag of the packets that carry them
  files @1 :UInt32;             # of the descriptors: first the directory, then so many model files,
  blocks @2 :UInt32;            # then so many blocks of device memory
}

struct Vault {                  # daemon -> worker: what a predecessor left; its descriptors were sent before it
  epoch @0 :UInt64;             # as it was offered; 0: there is nothing, start cold
  files @1 :UInt32;
  blocks @2 :UInt32;
  keepKv @3 :Bool;              # the predecessor's end casts no doubt on its KV pages
  replaced @4 :Bool;            # it ended because somebody asked for a new one: a changed model file counts
}

struct Promote {
  keepKv @0 :Bool;              # the predecessor's end casts no doubt on the KV pages that both know
  unsettled @1 :Bool;           # its last steps may still run on the device: Settled follows
}

struct Fatal {                  # the worker's last word before it exits
  message @0 :Text;
}
