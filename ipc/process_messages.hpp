// Messages about a worker's process: its start, its signs of life, what it leaves to a successor, and its end.
// messages.hpp says what all messages have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/fields.hpp"

namespace bulkhead::ipc {

// Returns a number computed from the layout of all messages. A worker that sends another number comes from another
// build than the daemon, and the two would misread each other's messages. Hello itself must stay readable, so its row
// never changes.
std::uint32_t protocol_version();

// ---- worker -> daemon ----

// The worker's first message.
struct Hello {
  std::uint32_t protocol = protocol_version();
  std::uint32_t pid = 0;
  std::string build;
  bool operator==(const Hello&) const = default;
  BULKHEAD_MESSAGE(0, "hello", protocol, pid, build)
};

// A worker sends this while it loads its model.
struct Progress {
  std::string stage;  // "reading weights", "compiling pipelines", "warming up"
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool operator==(const Progress&) const = default;
  BULKHEAD_MESSAGE(1, "progress", stage, done, total)
};

struct Optimization {
  std::string name;
  bool active = false;
  std::string reason;  // why it is not active
  bool operator==(const Optimization&) const = default;
  BULKHEAD_FIELDS(name, active, reason)
};

// One of the protections that confine a worker.
struct Protection {
  std::string name;
  bool active = false;
  std::string detail;  // what protects, or why it is not active
  bool operator==(const Protection&) const = default;
  BULKHEAD_FIELDS(name, active, detail)
};

enum class VaultState {
  kOff,       // a successor can import nothing of this process; `reason` says why
  kKept,      // the worker has loaded the model and offers it to a successor
  kImported,  // the worker imported the model from a predecessor, and offers it to a successor
  kWaiting,   // the model is loaded; VaultOffer follows once there is room for its descriptors
};
constexpr VaultState last_enumerator(VaultState) {
  return VaultState::kWaiting;
}

struct VaultReport {
  VaultState state = VaultState::kOff;
  std::string reason;                     // why the vault is off, or why it keeps no KV pages
  std::uint64_t import_microseconds = 0;  // time to map the predecessor's memory
  std::uint64_t check_microseconds = 0;   // time to compute the weights' checksums on the device
  std::uint64_t adopt_microseconds = 0;   // time to read the directory of KV pages
  std::uint64_t pages_adopted = 0;        // full KV pages that the worker need not compute again
  // Pages that the worker does not write to before Settled, because the predecessor's last steps may still write to
  // them.
  std::uint64_t pages_withheld = 0;
  bool operator==(const VaultReport&) const = default;
  BULKHEAD_FIELDS(state, reason, import_microseconds, check_microseconds, adopt_microseconds,
                  pages_adopted, pages_withheld)
};

// A worker leaves out the text of a special token that is longer.
inline constexpr std::size_t kMostSpecialTokenBytes = 1024;

// The model's size and number formats, as lists of models show them.
struct FileFacts {
  std::uint64_t parameters = 0;  // weights of all tensors
  std::string size;              // "7.6B"; empty: unknown
  std::string quantization;      // "Q4_K_M"; empty: unknown
  bool operator==(const FileFacts&) const = default;
  BULKHEAD_FIELDS(parameters, size, quantization)
};

// A value that the model's file recommends for a field of Sampling (general.sampling.*). The field has the name by
// which requests set it.
struct SamplingAdvice {
  std::string name;
  double value = 0;
  bool operator==(const SamplingAdvice&) const = default;
  BULKHEAD_FIELDS(name, value)
};

// The worker sends this when it has loaded the model and run one forward pass.
struct Ready {
  std::string model_name;
  std::string architecture;
  std::string device;
  std::string numerics_id;
  std::uint32_t context_limit = 0;  // tokens that one sequence may have
  std::uint32_t vocabulary_size = 0;
  std::uint64_t kv_cache_tokens = 0;  // tokens of all sequences together that fit in the KV cache
  std::uint64_t weight_bytes = 0;
  std::uint64_t load_milliseconds = 0;
  bool has_chat_template = false;
  std::string chat_template;  // the form of the answers, or the reason why there is no template
  // What the model can do, in Ollama's words: "completion", "tools", "thinking", "embedding"; and "rerank".
  std::vector<std::string> capabilities;
  std::vector<Optimization> optimizations;
  std::vector<Protection> protections;
  VaultReport vault;
  // Empty if there is none; 256 KiB at most, because the worker uses no longer template.
  std::string template_source;
  std::string bos_token, eos_token;  // as the vocabulary writes them; empty if there are none
  FileFacts facts;
  std::vector<SamplingAdvice> sampling;
  bool operator==(const Ready&) const = default;
  BULKHEAD_MESSAGE(2, "ready", model_name, architecture, device, numerics_id, context_limit,
                   vocabulary_size, kv_cache_tokens, weight_bytes, load_milliseconds,
                   has_chat_template, chat_template, capabilities, optimizations, protections,
                   vault, template_source, bos_token, eos_token, facts, sampling)
};

// Most descriptors that one vault may have.
inline constexpr std::size_t kMostVaultDescriptors = 224;

// The worker sends this right after the descriptors that it describes: before Ready, or after a Ready that said
// kWaiting.
struct VaultOffer {
  std::uint64_t epoch = 0;   // also the tag of the packets that carry the descriptors
  std::uint32_t files = 0;   // model files; their descriptors follow the directory's
  std::uint32_t blocks = 0;  // blocks of device memory; their descriptors come last
  bool operator==(const VaultOffer&) const = default;
  BULKHEAD_MESSAGE(25, "vault offer", epoch, files, blocks)
};

// The slabs of KV pages by which a worker's cache grows (docs/glossary.md) have smaller numbers.
inline constexpr std::uint32_t kMostVaultSlabs = 1024;

// A slab that belongs to the vault besides its blocks.
struct HeldSlab {
  std::uint32_t slab = 0;
  std::uint64_t offset = 0;  // of its first page in its memory, in bytes
  bool operator==(const HeldSlab&) const = default;
  BULKHEAD_FIELDS(slab, offset)
};

// A worker's cache has grown or shrunk since it offered its vault. `held`: the message follows a packet with the slab's
// one descriptor, which replaces an earlier one. Otherwise the slab's memory is given back.
struct VaultSlab {
  std::uint64_t epoch = 0;  // of the vault; also the packet's tag
  HeldSlab place;
  bool held = false;
  bool operator==(const VaultSlab&) const = default;
  BULKHEAD_MESSAGE(36, "vault slab", epoch, place, held)
};

struct Counter {
  std::string name;  // a Prometheus name without the prefix "bulkhead_worker_"
  double value = 0;
  bool operator==(const Counter&) const = default;
  BULKHEAD_FIELDS(name, value)
};

struct Stats {
  std::uint64_t steps = 0;
  std::uint32_t active_sequences = 0;
  std::uint32_t waiting_sequences = 0;
  std::uint64_t kv_pages_used = 0;
  std::uint64_t kv_pages_total = 0;
  std::vector<Counter> counters;
  bool operator==(const Stats&) const = default;
  BULKHEAD_MESSAGE(10, "stats", steps, active_sequences, waiting_sequences, kv_pages_used,
                   kv_pages_total, counters)
};

struct Pong {
  std::uint64_t nonce = 0;
  bool operator==(const Pong&) const = default;
  BULKHEAD_MESSAGE(11, "pong", nonce)
};

// The worker's last message before it exits.
struct Fatal {
  std::string message;
  bool operator==(const Fatal&) const = default;
  BULKHEAD_MESSAGE(12, "fatal", message)
};

struct Drained {
  bool operator==(const Drained&) const = default;
  BULKHEAD_MESSAGE(13, "drained")
};

// ---- daemon -> worker ----

struct Ping {
  std::uint64_t nonce = 0;
  bool operator==(const Ping&) const = default;
  BULKHEAD_MESSAGE(19, "ping", nonce)
};

// The daemon's first message to a worker that was started with --vault.
struct Vault {
  std::uint64_t epoch = 0;  // 0: there is no predecessor's vault
  std::uint32_t files = 0;
  std::uint32_t blocks = 0;
  bool may_adopt_kv = false;  // false: the predecessor's end casts doubt on its KV pages
  bool replaced = false;  // an operator asked for a new process, and so for a changed model file
  std::vector<HeldSlab> slabs = {};  // their descriptors come last
  bool operator==(const Vault&) const = default;
  BULKHEAD_MESSAGE(20, "vault", epoch, files, blocks, may_adopt_kv, replaced, slabs)
};

struct Drain {
  bool operator==(const Drain&) const = default;
  BULKHEAD_MESSAGE(21, "drain")
};
struct Shutdown {
  bool operator==(const Shutdown&) const = default;
  BULKHEAD_MESSAGE(22, "shutdown")
};

// The daemon asks for the times of one step's kernels; the worker sends them with its next Stats.
struct Profile {
  bool operator==(const Profile&) const = default;
  BULKHEAD_MESSAGE(23, "profile")
};

// The daemon tells a standby, which is ready and has had no request, to serve from now on. The standby answers with a
// second Ready (and with Progress before it, if that takes time); then the daemon sends it requests.
struct Promote {
  bool may_adopt_kv = false;  // as in Vault; it counts for a standby that imported its memory
  bool unsettled =
      false;  // the predecessor's last steps may still write to its KV pages: Settled follows
  bool operator==(const Promote&) const = default;
  BULKHEAD_MESSAGE(24, "promote", may_adopt_kv, unsettled)
};

// The daemon tells a successor that its predecessor, with all of its work on the device, is gone.
struct Settled {
  bool operator==(const Settled&) const = default;
  BULKHEAD_MESSAGE(26, "settled")
};

}  // namespace bulkhead::ipc
