#include "worker/main_describe.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ipc/exit_codes.hpp"
#include "ipc/messages.hpp"
#include "worker/model/answer/derived_family.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/file_facts.hpp"
#include "worker/model/graph_encoder.hpp"
#include "worker/model/ranking.hpp"
#include "worker/model/template_file.hpp"
#include "worker/model/tokenizer_check.hpp"

namespace bulkhead::worker {
namespace {

void add_capabilities_of_text(const engine::Language& language, ipc::Ready& ready) {
  ready.capabilities.emplace_back("completion");
  const bool chat = language.chat.ok();
  const model::answer::Family& family = *language.family;
  if (chat && family.calls.syntax != model::answer::CallSyntax::kNone)
    ready.capabilities.emplace_back("tools");
  if (chat && !family.reasoning.open.empty()) ready.capabilities.emplace_back("thinking");
}

Result<ipc::Ready> read_description(const Arguments& arguments) {
  BULKHEAD_TRY(const auto file, model::GgufFile::open(arguments.model));
  BULKHEAD_TRY(const model::ModelGraph graph, model::read_model(*file));
  BULKHEAD_RETURN_IF_ERROR(model::check_tokenizer(*file));
  engine::Language language;
  if (arguments.chat_template.empty()) {
    language.chat = model::load_chat(*file);
  } else {
    BULKHEAD_TRY(language.chat, model::load_asked_chat(*file, arguments.chat_template));
  }
  if (language.chat.ok()) language.family = &model::answer::family_of_chat(*language.chat);
  if (model::has_rank_head(*file)) {
    BULKHEAD_TRY(const auto tokenizer, model::Tokenizer::from_gguf(*file));
    language.ranker = model::load_ranker(*file, *tokenizer, graph, "");
  }
  ipc::Ready ready;
  describe_model(*file, graph, language, ready);
  ready.numerics_id = "not loaded";
  ready.context_limit =
      arguments.context == 0 ? graph.context : std::min(arguments.context, graph.context);
  for (const model::TensorInfo& tensor : file->tensors())
    ready.weight_bytes += tensor.data.size();
  return ready;
}

bool write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return true;
}

}  // namespace

void describe_model(const model::GgufFile& file, const model::ModelGraph& graph,
                    const engine::Language& language, ipc::Ready& ready) {
  ready.model_name = graph.name;
  ready.architecture = graph.architecture;
  ready.vocabulary_size = graph.vocabulary;
  const auto& chat = language.chat;
  ready.has_chat_template = chat.ok();
  ready.chat_template = chat.ok() ? language.family->name : chat.error().message();
  if (chat.ok()) ready.template_source = chat->source();
  if (language.ranker.ok()) ready.capabilities.emplace_back("rerank");
  if (!is_encoder(graph) && (!language.ranker.ok() || language.ranker->generates))
    add_capabilities_of_text(language, ready);
  if (is_encoder(graph) || !language.ranker.ok() || language.ranker->generates)
    ready.capabilities.emplace_back("embedding");
  for (const model::SamplerAdvice& each : model::sampler_advice(file))
    ready.sampling.push_back({each.name, each.value});
  model::FileFacts facts = model::facts_of(file);
  ready.facts = {facts.parameters, std::move(facts.size), std::move(facts.quantization)};
}

int describe_file(const Arguments& arguments) {
  Result<ipc::Ready> ready = read_description(arguments);
  const ipc::FromWorker message = ready.ok() ? ipc::FromWorker(*std::move(ready))
                                             : ipc::FromWorker(ipc::Fatal{ready.error().message()});
  std::vector<std::uint64_t> record(ipc::encoded_bound(message) / sizeof(std::uint64_t) + 1);
  const auto bytes = std::as_writable_bytes(std::span(record));
  const Result<std::size_t> size = ipc::encode(message, bytes);
  if (!size.ok() || !write_all(bytes.first(*size))) return ipc::kExitInternal;
  return ipc::kExitStopped;
}

}  // namespace bulkhead::worker
