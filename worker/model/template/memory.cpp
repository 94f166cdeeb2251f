#include "worker/model/template/memory.hpp"

#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

thread_local std::int64_t live_bytes = 0;
thread_local std::int64_t limit_bytes = kUnlimited;

}  // namespace

void charge_memory(std::size_t bytes) {
  const auto more = static_cast<std::int64_t>(bytes);
  if (live_bytes > 0 ? more > limit_bytes - live_bytes : live_bytes + more > limit_bytes)
    throw TemplateError(TemplateError::Kind::kLimit,
                        "takes too much memory: it builds lists or text without end, or far more "
                        "of them than the conversation has; shorten the conversation, or use "
                        "another template (models[].chat_template)");
  live_bytes += more;
}

void refund_memory(std::size_t bytes) noexcept {
  live_bytes -= static_cast<std::int64_t>(bytes);
}

MemoryScope::MemoryScope(std::size_t max_bytes) : outer_limit_(limit_bytes) {
  const auto inner = live_bytes + static_cast<std::int64_t>(max_bytes);
  if (inner < limit_bytes) limit_bytes = inner;
}

void MemoryScope::extend(std::size_t bytes) {
  const auto more = static_cast<std::int64_t>(bytes);
  limit_bytes = more > outer_limit_ - limit_bytes ? outer_limit_ : limit_bytes + more;
}

MemoryScope::~MemoryScope() {
  limit_bytes = outer_limit_;
}

}  // namespace bulkhead::jinja
