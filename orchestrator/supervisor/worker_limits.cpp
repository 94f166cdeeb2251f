#include "orchestrator/supervisor/worker_limits.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <variant>

#include <spdlog/fmt/fmt.h>

#include "config/base/clean_text.hpp"
#include "orchestrator/supervisor/file_mark.hpp"

namespace bulkhead::orchestrator {
namespace {

constexpr std::size_t kNameBytes = 256;       // the name of a thing
constexpr std::size_t kReasonBytes = 4096;    // one sentence or a few
constexpr std::size_t kFailureBytes = 65536;  // the client gets this text
// A template has 256 KiB at most, and a byte that is no UTF-8 becomes three.
constexpr std::size_t kTemplateBytes = std::size_t{768} << 10;
constexpr std::size_t kSpecialTokenBytes = 3 * ipc::kMostSpecialTokenBytes;
constexpr std::size_t kNumericsIdBytes =
    1024;  // three names of up to 255 bytes that a driver reports, and numbers
constexpr std::size_t kMostCounters = 256;
constexpr std::size_t kMostOptimizations = 64;
constexpr std::size_t kMostProtections = 32;
constexpr std::size_t kMostCapabilities = 16;
constexpr std::size_t kMostWarnings = 16;

Status too_long(const char* what, std::size_t size, std::size_t limit) {
  if (size <= limit) return {};
  return Error(ErrorCode::kCorrupt,
               fmt::format("{} has {} bytes, and {} are allowed", what, size, limit));
}
Status too_many(const char* what, std::size_t count, std::size_t limit) {
  if (count <= limit) return {};
  return Error(ErrorCode::kCorrupt, fmt::format("{} {}, and {} are allowed", count, what, limit));
}

Status not_finite(std::string_view what) {
  return Error(ErrorCode::kCorrupt, fmt::format("{} is not a finite number", what));
}

// Streams are compared, journalled and logged by the id, and a client's fingerprint is made of it. So the id is checked
// and not tidied: two ids that differ must not become one. The worker makes it in worker/forward/transformer.cpp:
// ".../weights-0123456789abcdef/file-0123456789abcdef/kv-f16". Without checksums of the weights both sums are absent.
Status check_numerics_id(std::string_view id) {
  BULKHEAD_RETURN_IF_ERROR(too_long("ready.numericsId", id.size(), kNumericsIdBytes));
  const auto wrong = [](const char* how) {
    return Error(ErrorCode::kCorrupt, std::string("ready.numericsId ") + how);
  };
  if (id.empty()) return wrong("is empty");
  if (cleaned(id, Escapes::kJson) != id) return wrong("is no printable text");
  if (id.find(kWeightsInId) != id.npos && !names_content(id))
    return wrong("names weights in another form than workers do");
  return {};
}

struct Check {
  Status operator()(const ipc::Hello& m) const {
    return too_long("hello.build", m.build.size(), kNameBytes);
  }
  Status operator()(const ipc::Progress& m) const {
    return too_long("progress.stage", m.stage.size(), kNameBytes);
  }
  Status operator()(const ipc::Ready& m) const {
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.modelName", m.model_name.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.architecture", m.architecture.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.device", m.device.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(check_numerics_id(m.numerics_id));
    BULKHEAD_RETURN_IF_ERROR(too_long("vault.reason", m.vault.reason.size(), kReasonBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.chatTemplate", m.chat_template.size(), kFailureBytes));
    BULKHEAD_RETURN_IF_ERROR(
        too_long("ready.templateSource", m.template_source.size(), kTemplateBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.bosToken", m.bos_token.size(), kSpecialTokenBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("ready.eosToken", m.eos_token.size(), kSpecialTokenBytes));
    BULKHEAD_RETURN_IF_ERROR(too_long("facts.size", m.facts.size.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(
        too_long("facts.quantization", m.facts.quantization.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(
        too_many("sampling", m.sampling.size(), std::size(ipc::kOpenSamplers)));
    for (const ipc::SamplingAdvice& each : m.sampling) {
      BULKHEAD_RETURN_IF_ERROR(too_long("sampling.name", each.name.size(), kNameBytes));
      if (std::ranges::none_of(ipc::kOpenSamplers, [&](const ipc::OpenSampler& sampler) {
            return each.name == sampler.name;
          }))
        return Error(ErrorCode::kCorrupt, "sampling.name is no sampler's");
      if (!std::isfinite(each.value)) return not_finite("sampling.value");
      constexpr double kMostAdvice = 1U << 31;  // the daemon shows top_k as an integer
      if (std::abs(each.value) > kMostAdvice)
        return Error(ErrorCode::kCorrupt, "sampling.value is too large");
    }
    BULKHEAD_RETURN_IF_ERROR(too_many("capabilities", m.capabilities.size(), kMostCapabilities));
    for (const std::string& each : m.capabilities)
      BULKHEAD_RETURN_IF_ERROR(too_long("capability", each.size(), kNameBytes));
    BULKHEAD_RETURN_IF_ERROR(too_many("optimizations", m.optimizations.size(), kMostOptimizations));
    for (const ipc::Optimization& each : m.optimizations) {
      BULKHEAD_RETURN_IF_ERROR(too_long("optimization.name", each.name.size(), kNameBytes));
      BULKHEAD_RETURN_IF_ERROR(too_long("optimization.reason", each.reason.size(), kReasonBytes));
    }
    BULKHEAD_RETURN_IF_ERROR(too_many("protections", m.protections.size(), kMostProtections));
    for (const ipc::Protection& each : m.protections) {
      BULKHEAD_RETURN_IF_ERROR(too_long("protection.name", each.name.size(), kNameBytes));
      BULKHEAD_RETURN_IF_ERROR(too_long("protection.detail", each.detail.size(), kReasonBytes));
    }
    return {};
  }
  Status operator()(const ipc::Stats& m) const {
    BULKHEAD_RETURN_IF_ERROR(too_many("counters", m.counters.size(), kMostCounters));
    for (const ipc::Counter& each : m.counters)
      BULKHEAD_RETURN_IF_ERROR(too_long("counter.name", each.name.size(), kNameBytes));
    return {};
  }
  static Status warnings(const std::vector<std::string>& texts) {
    BULKHEAD_RETURN_IF_ERROR(too_many("warnings", texts.size(), kMostWarnings));
    for (const std::string& each : texts)
      BULKHEAD_RETURN_IF_ERROR(too_long("a warning", each.size(), kNameBytes));
    return {};
  }
  Status operator()(const ipc::Accepted& m) const { return warnings(m.warnings); }
  Status operator()(const ipc::AppliedTemplate& m) const { return warnings(m.warnings); }
  Status operator()(const ipc::Failed& m) const {
    BULKHEAD_RETURN_IF_ERROR(too_long("failed.message", m.message.size(), kFailureBytes));
    return too_long("failed.parameter", m.parameter.size(), kNameBytes);
  }
  // JSON has no infinity and no NaN. An honest worker fails a request rather than send one.
  Status operator()(const ipc::Embedded& m) const {
    for (std::size_t i = 0; i < m.values.size(); ++i)
      if (!std::isfinite(m.values[i])) return not_finite(fmt::format("embedded.values[{}]", i));
    return {};
  }
  Status operator()(const ipc::Ranked& m) const {
    return std::isfinite(m.score) ? Status() : not_finite("ranked.score");
  }
  template <typename Other>
  Status operator()(const Other&) const {
    return {};  // the request bounds these sizes; the journal checks them
  }
};

void one_line(std::string& text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
}

}  // namespace

Status check_limits(const ipc::FromWorker& message) {
  return std::visit(Check{}, message);
}

void tidy(ipc::FromWorker& message) {
  if (auto* fatal = std::get_if<ipc::Fatal>(&message)) {
    if (fatal->message.size() > kReasonBytes) {
      std::size_t end = kReasonBytes;  // the text must not be cut inside a character
      while (end > 0 && (static_cast<unsigned char>(fatal->message[end]) & 0xC0) == 0x80)
        --end;
      fatal->message = fatal->message.substr(0, end) + " ...";
    }
    one_line(fatal->message);
  } else if (auto* progress = std::get_if<ipc::Progress>(&message)) {
    one_line(progress->stage);
  } else if (auto* accepted = std::get_if<ipc::Accepted>(&message)) {
    for (std::string& each : accepted->warnings)
      one_line(each);
  } else if (auto* applied = std::get_if<ipc::AppliedTemplate>(&message)) {
    for (std::string& each : applied->warnings)
      one_line(each);
  } else if (auto* ready = std::get_if<ipc::Ready>(&message)) {
    for (std::string* text : {&ready->model_name, &ready->architecture, &ready->device,
                              &ready->facts.size, &ready->facts.quantization})
      one_line(*text);
    one_line(ready->vault.reason);
    for (std::string& each : ready->capabilities)
      one_line(each);
    for (ipc::Optimization& each : ready->optimizations) {
      one_line(each.name);
      one_line(each.reason);
    }
    for (ipc::Protection& each : ready->protections) {
      one_line(each.name);
      one_line(each.detail);
    }
  }
}

}  // namespace bulkhead::orchestrator
