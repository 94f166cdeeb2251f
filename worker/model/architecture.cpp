#include "worker/model/architecture.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "architectures.inc"  // the build makes this file: kArchitectures, with one entry from each file
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Kinds of GGUF files that hold no language model, by general.type or general.architecture.
struct NamedPart {
  std::string_view name, what;
};
constexpr std::string_view kHelper =
    "a helper that drafts tokens for another file's model; give that file";
constexpr NamedPart kParts[] = {
    {"mmproj",
     "a projector of images or sound (mmproj); give the model's own file, which serves "
     "text without it"},
    {"clip",
     "a projector of images or sound (clip, mmproj); give the model's own file, which "
     "serves text without it"},
    {"adapter", "an adapter (LoRA), which changes another file's weights; merge the two"},
    {"imatrix", "an importance matrix, which quantisers take"},
    {"controlvector", "a control vector, which changes another file's answers; give that file"},
    {"eagle3", kHelper},
    {"dflash", kHelper},
    {"gemma4-assistant", kHelper},
};

// Architectures of encoders that have no file in architectures/. An encoder reads a text in both directions, as BERT
// does.
constexpr std::string_view kEncoders[] = {"jina-bert-v2", "t5encoder"};

Status refuse_encoders(const GgufFile& file, std::string_view architecture) {
  if (std::ranges::find(kEncoders, architecture) == std::end(kEncoders)) return {};
  return Error(ErrorCode::kUnsupported,
               file.name() + ": architecture \"" + std::string(architecture) +
                   "\" is an encoder that is not supported. For embeddings load a model of "
                   "architecture bert, modern-bert or gemma-embedding, or a decoder such as "
                   "Qwen3-Embedding; for ranking load Qwen3-Reranker");
}

// An importance matrix has a type and no architecture.
Status refuse_parts(const GgufFile& file, const std::optional<std::string_view>& architecture) {
  BULKHEAD_TRY(const auto type, file.get_string("general.type"));
  for (const NamedPart& part : kParts) {
    if (architecture == part.name || type == part.name)
      return Error(ErrorCode::kUnsupported,
                   file.name() + ": is not a model but " + std::string(part.what) +
                       "; supported architectures are: " + architecture_names());
  }
  return {};
}

// Some files hold only the blocks behind a model's last layer, which draft tokens for the layers
// of another file.
Status refuse_drafting_blocks(const GgufFile& file) {
  const auto some = [&file](const auto& is) {
    return std::ranges::any_of(file.tensors(),
                               [&is](const TensorInfo& each) { return is(each.name); });
  };
  const bool drafts =
      some([](std::string_view name) { return name.find(".nextn.") != std::string_view::npos; });
  if (!drafts || some([](std::string_view name) { return name.starts_with("blk.0."); })) return {};
  return Error(ErrorCode::kUnsupported,
               file.name() +
                   ": holds only the blocks that draft tokens (blk.N.nextn) and none of the "
                   "model's layers; give the model's own file");
}

Result<ModelGraph> read(const GgufFile& file, GraphBuilder::Has has, GraphBuilder::Part part) {
  BULKHEAD_TRY(const auto name, file.get_string("general.architecture"));
  BULKHEAD_RETURN_IF_ERROR(refuse_parts(file, name));
  if (!name) {
    return Error(ErrorCode::kCorrupt,
                 file.name() +
                     ": metadata key general.architecture is missing; the file is damaged or was "
                     "converted wrongly");
  }
  BULKHEAD_RETURN_IF_ERROR(refuse_encoders(file, *name));
  BULKHEAD_RETURN_IF_ERROR(refuse_drafting_blocks(file));
  for (const Architecture* const each : architectures()) {
    if (*name != each->name) continue;
    GraphBuilder builder(file, *each, std::move(has), part);
    if (builder.status().ok()) each->describe(builder);
    return builder.finish();
  }
  return Error(ErrorCode::kUnsupported,
               file.name() + ": architecture \"" + std::string(name->substr(0, 64)) +
                   "\" is not supported; supported are: " + architecture_names());
}

}  // namespace

std::span<const Architecture* const> architectures() {
  return kArchitectures;
}

std::string architecture_names() {
  std::string list;
  for (const Architecture* const each : architectures())
    list += (list.empty() ? "" : ", ") + std::string(each->name);
  return list;
}

Result<ModelGraph> read_model(const GgufFile& file) {
  return read(file, nullptr, GraphBuilder::Part::kModel);
}

Result<ModelGraph> read_drafting_block(const GgufFile& file) {
  return read(file, nullptr, GraphBuilder::Part::kDraftingBlock);
}

Result<ModelGraph> imagine_model(const GgufFile& file,
                                 std::function<bool(const std::string& name)> has) {
  return read(file, std::move(has), GraphBuilder::Part::kModel);
}

Result<ModelGraph> imagine_drafting_block(const GgufFile& file,
                                          std::function<bool(const std::string& name)> has) {
  return read(file, std::move(has), GraphBuilder::Part::kDraftingBlock);
}

}  // namespace bulkhead::model
