// Reads a record that a hostile worker may have written with both of the daemon's readers.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "ipc/messages.hpp"
#include "ipc/utf8.hpp"

using namespace bulkhead;

namespace {

void require(bool rule) {
  if (!rule) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // An aligned copy of the exact size. new[] aligns to 16.
  const auto copy = std::make_unique_for_overwrite<std::byte[]>(size);
  if (size != 0) std::memcpy(copy.get(), data, size);
  const std::span<const std::byte> record(copy.get(), size);

  std::uint64_t visited_tokens = 0, visited_sequences = 0;
  const auto visited = ipc::visit_tokens(record, [&](const ipc::SequenceTokensView& view) {
    ++visited_sequences;
    visited_tokens += view.tokens.size();
    for (const ipc::TokenId& token : view.tokens) {
      const auto* at = reinterpret_cast<const std::byte*>(&token);
      require(at >= record.data() && at + sizeof token <= record.data() + record.size());
    }
    require(ipc::is_utf8(view.text));
    require(view.logprobs.empty() || view.logprobs.size() == view.tokens.size());
  });
  const auto decoded = ipc::decode_from_worker(record);
  if (!decoded.ok()) {
    require(decoded.error().code() == ErrorCode::kCorrupt);
  } else {
    const auto* batch = std::get_if<ipc::TokenBatch>(&*decoded);
    require(visited.ok() && *visited == (batch != nullptr));
    if (batch != nullptr) {
      require(batch->sequences.size() == visited_sequences);
      std::uint64_t tokens = 0;
      for (const auto& sequence : batch->sequences)
        tokens += sequence.tokens.size();
      require(tokens == visited_tokens);
    }
    // What was decoded must encode again.
    const std::size_t bound = ipc::encoded_bound(*decoded);
    const auto again = std::make_unique_for_overwrite<std::byte[]>(bound);
    const auto bytes = ipc::encode(*decoded, {again.get(), bound});
    require(bytes.ok() && *bytes <= bound);
    const auto reread = ipc::decode_from_worker({again.get(), *bytes});
    require(reread.ok() && reread->index() == decoded->index());
  }
  (void)ipc::decode_to_worker(record);  // no crash there either
  return 0;
}
