#include "worker/model/template/memory.hpp"

#include <algorithm>

#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

// Beyond any memory, and so small that sums and differences of two such numbers fit.
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

// A thread that frees what another one has made counts below zero.
thread_local std::int64_t live_bytes = 0;
thread_local std::int64_t limit_bytes = kUnlimited;

std::int64_t counted(std::size_t bytes) {
  return static_cast<std::int64_t>(
      std::min<std::size_t>(bytes, static_cast<std::size_t>(kUnlimited)));
}

}  // namespace

void charge_memory(std::size_t bytes) {
  const std::int64_t more = counted(bytes);
  if (more > limit_bytes - live_bytes)
    throw TemplateError(TemplateError::Kind::kLimit,
                        "takes too much memory: it builds lists or text without end, or far more "
                        "of them than the conversation has; shorten the conversation, or use "
                        "another template (models[].chat_template)");
  live_bytes += more;
}

void refund_memory(std::size_t bytes) noexcept {
  live_bytes -= counted(bytes);
}

MemoryScope::MemoryScope(std::size_t max_bytes) : outer_limit_(limit_bytes) {
  limit_bytes = std::min(outer_limit_, live_bytes + counted(max_bytes));
}

MemoryScope::~MemoryScope() {
  limit_bytes = outer_limit_;
}

}  // namespace bulkhead::jinja
