// make-model writes GGUF files with real shapes and random weights, for benchmarks and for tests that can't download
// a model.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include <CLI/CLI.hpp>

#include "config/base/percent.hpp"
#include "tools/model-maker/write_model.hpp"

namespace bulkhead::model_maker {
namespace {

struct Options {
  std::string preset = "tiny-llama";
  std::string type = "Q4_K_M";
  std::string output;
  std::string vocab_from;
  std::uint64_t seed = 1;
  unsigned threads = 0;
  bool list = false;
  std::optional<std::string> architecture, name;
  std::optional<std::uint32_t> layers, embedding, feed_forward, heads, kv_heads, head_size,
      vocabulary, padding, context, experts, experts_used, expert_width;
  std::optional<float> rope_base;
  std::optional<bool> tied, joined_latents, drafting_block;
};

std::string listing() {
  std::string text = "presets:\n";
  for (const Shape& shape : presets()) {
    const std::string experts = shape.experts == 0
                                    ? ""
                                    : ", " + std::to_string(shape.experts) + " experts of " +
                                          std::to_string(shape.expert_width) + ", " +
                                          std::to_string(shape.experts_used) + " used";
    char line[256];
    std::snprintf(line, sizeof line,
                  "  %-17s %-8s %3u layers, embedding %u, feed-forward %u, heads %u/%u of %u, "
                  "vocabulary %u%s%s\n",
                  shape.name.c_str(), shape.architecture.c_str(), shape.layers, shape.embedding,
                  shape.feed_forward, shape.heads, shape.kv_heads, shape.head_size,
                  shape.vocabulary, shape.tied_output ? ", tied" : "", experts.c_str());
    text += line;
  }
  text += "types:\n ";
  for (const std::string& name : file_types())
    text += " " + name;
  return text + "\n";
}

Status make(const Options& options) {
  BULKHEAD_TRY(Shape shape, preset(options.preset));
  const auto override = [](auto& field, const auto& value) {
    if (value) field = *value;
  };
  if (options.architecture && *options.architecture != shape.architecture) {
    shape.llama3_rope = false;
    shape.qkv_bias = *options.architecture == "qwen2";
  }
  override(shape.architecture, options.architecture);
  override(shape.name, options.name);
  override(shape.layers, options.layers);
  override(shape.embedding, options.embedding);
  override(shape.feed_forward, options.feed_forward);
  override(shape.heads, options.heads);
  override(shape.kv_heads, options.kv_heads);
  override(shape.head_size, options.head_size);
  override(shape.vocabulary, options.vocabulary);
  override(shape.padding, options.padding);
  override(shape.context, options.context);
  override(shape.experts, options.experts);
  override(shape.experts_used, options.experts_used);
  override(shape.expert_width, options.expert_width);
  override(shape.rope_base, options.rope_base);
  override(shape.tied_output, options.tied);
  override(shape.joined_latents, options.joined_latents);
  override(shape.drafting_block, options.drafting_block);

  Metadata vocabulary;
  if (!options.vocab_from.empty()) {
    // The embedding has one row for each token of the copied vocabulary, so --vocabulary has no effect.
    BULKHEAD_TRY(shape.vocabulary, copy_vocabulary(options.vocab_from, vocabulary));
  } else {
    BULKHEAD_RETURN_IF_ERROR(add_made_vocabulary(shape, vocabulary));
  }
  BULKHEAD_TRY(const Plan plan, plan_tensors(shape, options.type));
  Metadata metadata;
  add_model_keys(shape, plan.file_type, metadata);
  metadata.append(vocabulary);

  const bool show = ::isatty(STDERR_FILENO) != 0;
  WriteOptions write{options.output, options.seed, options.threads, nullptr};
  int shown = -1;
  if (show) {
    write.progress = [&](std::uint64_t done, std::uint64_t total) {
      const int percent = percent_of(done, total);
      if (percent != shown) std::fprintf(stderr, "\r%d %%", shown = percent);
    };
  }
  const auto begun = std::chrono::steady_clock::now();
  const Result<std::uint64_t> written = write_model(shape, plan, metadata, write);
  if (show && shown >= 0) std::fprintf(stderr, "\r\033[K");
  if (!written.ok()) return written.error();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("%s: %s %s, %zu tensors, %.1f MiB in %.1f s (%.0f MB/s)\n", options.output.c_str(),
              shape.name.c_str(), options.type.c_str(), plan.tensors.size(),
              static_cast<double>(*written) / (1 << 20), seconds,
              static_cast<double>(*written) / 1e6 / (seconds > 0 ? seconds : 1e-9));
  return {};
}

int run(int argc, char** argv) {
  CLI::App app{
      "Writes a GGUF model file of a given shape and quantisation with seeded random weights."};
  Options options;
  app.add_option("--preset", options.preset, "Shape to start from (see --list)")
      ->capture_default_str();
  app.add_option("--type", options.type, "Quantisation (see --list)")->capture_default_str();
  app.add_option("-o,--output", options.output, "File to write");
  app.add_option("--vocab-from", options.vocab_from, "Copy the tokenizer of this GGUF file");
  app.add_option("--seed", options.seed, "Seed of the weights; the same seed gives the same file")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core")->capture_default_str();
  app.add_flag("--list", options.list, "List presets and types");
  app.add_option("--architecture,--arch", options.architecture,
                 "An architecture that Bulkhead computes")
      ->group("Shape");
  app.add_option("--name", options.name, "general.name")->group("Shape");
  app.add_option("--layers", options.layers)->group("Shape");
  app.add_option("--embedding", options.embedding, "Width of the residual stream")->group("Shape");
  app.add_option("--feed-forward", options.feed_forward)->group("Shape");
  app.add_option("--heads", options.heads)->group("Shape");
  app.add_option("--kv-heads", options.kv_heads)->group("Shape");
  app.add_option("--head-size", options.head_size)->group("Shape");
  app.add_option("--vocabulary", options.vocabulary,
                 "Number of tokens, if the vocabulary is made up")
      ->group("Shape");
  app.add_option("--padding", options.padding,
                 "How many of these tokens are unused ones at the end")
      ->group("Shape");
  app.add_option("--context", options.context)->group("Shape");
  app.add_option("--experts", options.experts, "Experts of a layer; 0: none")->group("Shape");
  app.add_option("--experts-used", options.experts_used, "Experts that a token takes")
      ->group("Shape");
  app.add_option("--expert-feed-forward", options.expert_width)->group("Shape");
  app.add_option("--rope-base", options.rope_base)->group("Shape");
  app.add_option("--tied", options.tied, "true: the embedding is the output matrix too")
      ->group("Shape");
  app.add_option(
         "--joined-latents", options.joined_latents,
         "true: one tensor has the matrices that make keys and values of latents, as in files "
         "made before April 2025")
      ->group("Shape");
  app.add_option("--drafting-block", options.drafting_block,
                 "true: a block that drafts tokens (multi-token prediction) follows the layers")
      ->group("Shape");
  app.footer(
      "Examples:\n"
      "  make-model --preset llama-3.2-1b --type F16 --output 1b-f16.gguf\n"
      "  make-model --preset qwen2.5-7b --type Q4_K_M --vocab-from vocabulary.gguf -o 7b.gguf\n"
      "  make-model --preset tiny-qwen3 --type Q5_K_M --layers 4 -o tiny.gguf");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.list) {
    std::fputs(listing().c_str(), stdout);
    return 0;
  }
  if (options.output.empty()) {
    std::fprintf(stderr, "make-model: --output is missing; see --help\n");
    return 2;
  }
  const Status status = make(options);
  if (!status.ok()) {
    std::fprintf(stderr, "make-model: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace bulkhead::model_maker

int main(int argc, char** argv) {
  try {
    return bulkhead::model_maker::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "make-model: internal error: %s\n", failure.what());
    return 1;
  }
}
