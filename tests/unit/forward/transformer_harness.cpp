#include "transformer_harness.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>

#include "worker/forward/split_transformer.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

// Returns the device for the first stage. Opens the device once more for each other stage, and keeps these for the
// next test, with the kernels that they have compiled.
std::vector<gpu::Device*> stage_devices(gpu::Device& device, std::size_t stages) {
  static std::vector<std::unique_ptr<gpu::Device>> opened;
  while (opened.size() + 1 < stages) {
    gpu::DeviceOptions again;
    again.selector = std::to_string(device.info().index);
    auto one = gpu::Device::open(again);
    EXPECT_TRUE(one.ok()) << one.error().message();
    if (!one.ok()) break;
    opened.push_back(*std::move(one));
  }
  std::vector<gpu::Device*> devices{&device};
  for (std::size_t i = 0; i + 1 < stages && i < opened.size(); ++i)
    devices.push_back(opened[i].get());
  return devices;
}

std::filesystem::path fixtures() {
  const char* const folder = std::getenv("BULKHEAD_FIXTURES");
  return std::filesystem::path(folder != nullptr ? folder
                                                 : BULKHEAD_SOURCE_DIR "/../shared/fixtures") /
         "models";
}

}  // namespace

std::filesystem::path model_file(const std::string& name) {
  const std::filesystem::path folder =
      name == "builtin" ? std::filesystem::path(BULKHEAD_SOURCE_DIR) / "worker/builtin"
                        : fixtures();
  return folder / (name + ".gguf");
}

std::string or_builtin(const std::string& name) {
  return std::filesystem::exists(model_file(name)) ? name : "builtin";
}

nlohmann::json expected(const std::string& name) {
  std::ifstream file(model_file(name).replace_extension("expected.json"));
  return nlohmann::json::parse(file);
}

Loaded TransformerTest::load(const std::string& name, const Options& options) {
  Loaded loaded;
  auto file = model::GgufFile::open(model_file(name).string());
  EXPECT_TRUE(file.ok()) << file.error().message();
  loaded.file = *std::move(file);
  auto graph = options.drafting_block ? model::read_drafting_block(*loaded.file)
                                      : model::read_model(*loaded.file);
  EXPECT_TRUE(graph.ok()) << graph.error().message();
  TransformerOptions made;
  made.engine.max_batch = options.max_batch;
  made.engine.prefill_chunk = options.chunk;
  made.engine.kv_type = options.kv;
  made.engine.matrix_attention = options.matrix_attention;
  const char* const attention = std::getenv("BULKHEAD_TEST_MATRIX_ATTENTION");
  if (attention != nullptr) {
    made.engine.matrix_attention = std::string_view(attention) == "on"
                                       ? config::MatrixAttention::kOn
                                       : config::MatrixAttention::kOff;
  }
  made.context = options.context;
  made.lanes_mapping = options.lanes;
  made.product_variant = options.product_variant;
  made.broken_link = options.broken_link;
  made.wait_timeout_ms = 60000;
  made.gpu.memory_pool.heap_size_mb = 32;
  made.gpu.memory_pool.num_heaps = 1;
  made.gpu.memory_pool.warmup_sizes = {1};
  made.gpu.blit_queue.staging_buffer_size_mb = 4;
  options.gpu(made.gpu);
  std::vector<gpu::Device*> devices;
  if (options.stages > 1) devices = stage_devices(device(), options.stages);
  auto executor = devices.empty() ? make_transformer(device(), *loaded.file, *graph, made)
                                  : make_split_transformer(devices, *loaded.file, *graph, made);
  EXPECT_TRUE(executor.ok()) << executor.error().message();
  if (executor.ok()) loaded.executor = *std::move(executor);
  return loaded;
}

std::vector<TokenId> some_prompt(std::size_t length) {
  std::vector<TokenId> prompt(length);
  for (std::size_t i = 0; i < length; ++i)
    prompt[i] = static_cast<TokenId>((i * 7919 + 13) % 2000);
  return prompt;
}

std::vector<PageIndex> pages_for(const Executor& executor, std::uint32_t positions,
                                 std::uint32_t sequence) {
  const std::uint32_t each = executor.limits().page_tokens;
  std::vector<PageIndex> pages((positions + each - 1) / each);
  for (std::uint32_t i = 0; i < pages.size(); ++i)
    pages[i] = (i * 37 + sequence * 17) % executor.limits().pages_at_first();
  return pages;
}

std::vector<Column> columns_of(const std::vector<TokenId>& prompt, std::uint32_t sequence,
                               Output output, std::size_t first, std::size_t count) {
  std::vector<Column> columns;
  const std::size_t end = first + std::min(count, prompt.size() - first);
  for (std::size_t i = first; i < end; ++i) {
    columns.push_back({prompt[i], static_cast<std::uint32_t>(i), sequence,
                       i + 1 == prompt.size() ? output : Output::kNone});
  }
  return columns;
}

namespace {

// Returns the window pages of each sequence, by its place in a step. A long sequence uses the same few
// pages again and again.
std::vector<std::vector<PageIndex>> window_pages_for(
    const Executor& executor, const std::vector<std::vector<PageIndex>>& pages) {
  const engine::ExecutorLimits& limits = executor.limits();
  const std::uint32_t each = limits.window_pages / std::max(1U, limits.max_sequences);
  const bool as_many = limits.window_pages >= limits.total_pages;
  std::vector<std::vector<PageIndex>> made;
  for (std::uint32_t s = 0; limits.window > 0 && s < pages.size(); ++s) {
    auto& of_sequence = made.emplace_back(pages[s]);
    for (std::uint32_t i = 0; i < of_sequence.size(); ++i)
      of_sequence[i] = limits.total_pages + (as_many ? pages[s][i] : s * each + i % each);
  }
  return made;
}

// Returns the window pages without those that none of the columns sees.
std::vector<engine::WindowPages> seen_pages(const Executor& executor,
                                            const std::vector<Column>& columns,
                                            const std::vector<std::vector<PageIndex>>& pages) {
  const engine::ExecutorLimits& limits = executor.limits();
  std::vector<engine::WindowPages> seen;
  for (std::uint32_t s = 0; s < pages.size(); ++s) {
    std::uint32_t least = limits.context;
    for (const Column& column : columns) {
      if (column.sequence == s) least = std::min(least, column.position);
    }
    const std::uint32_t first =
        std::min(static_cast<std::uint32_t>(pages[s].size()),
                 (least + 1 - std::min(least + 1, limits.window)) / limits.page_tokens);
    seen.push_back({first, std::span(pages[s]).subspan(first)});
  }
  return seen;
}

}  // namespace

std::vector<Row> step(Executor& executor, const std::vector<Column>& columns,
                      const std::vector<std::vector<PageIndex>>& pages,
                      std::vector<engine::StateUse> states) {
  std::vector<std::span<const PageIndex>> sequences(pages.begin(), pages.end());
  // The same sequence has the same place in `pages` from step to step.
  for (auto s = static_cast<std::uint32_t>(states.size());
       executor.limits().states > 0 && s < pages.size(); ++s)
    states.push_back({s, s});
  const auto window_pages = window_pages_for(executor, pages);
  const auto windows = seen_pages(executor, columns, window_pages);
  const Status submitted = executor.submit({columns, sequences, states, windows});
  EXPECT_TRUE(submitted.ok()) << submitted.error().message();
  std::vector<Row> rows;
  if (!submitted.ok()) return rows;
  auto outputs = executor.wait();
  EXPECT_TRUE(outputs.ok()) << outputs.error().message();
  if (!outputs.ok()) return rows;
  for (const ColumnOutput& output : *outputs) {
    rows.push_back({output.best,
                    output.best_logprob,
                    {output.logits.begin(), output.logits.end()},
                    {output.hidden.begin(), output.hidden.end()}});
  }
  return rows;
}

std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::uint32_t chunk, Output output) {
  return generate(executor, prompt, tokens, std::span(&chunk, 1), output);
}

std::vector<Row> generate(Executor& executor, const std::vector<TokenId>& prompt,
                          std::size_t tokens, std::span<const std::uint32_t> chunks,
                          Output output) {
  const auto pages = pages_for(executor, static_cast<std::uint32_t>(prompt.size() + tokens));
  std::vector<Row> rows;
  for (std::size_t at = 0, turn = 0; at < prompt.size(); ++turn) {
    const std::uint32_t chunk = chunks[turn % chunks.size()];
    auto made = step(executor, columns_of(prompt, 0, output, at, chunk), {pages});
    rows.insert(rows.end(), made.begin(), made.end());
    at += chunk;
  }
  while (rows.size() < tokens && !rows.empty()) {
    const auto position = static_cast<std::uint32_t>(prompt.size() + rows.size() - 1);
    auto made = step(executor, {{rows.back().best, position, 0, output}}, {pages});
    if (made.empty()) break;
    rows.push_back(std::move(made[0]));
  }
  return rows;
}

std::vector<Row> generate_with_drafts(Executor& executor, const std::vector<TokenId>& prompt,
                                      const std::vector<Row>& known) {
  const bool states = executor.limits().states > 0;
  const auto pages = pages_for(executor, static_cast<std::uint32_t>(prompt.size() + known.size()));
  std::vector<Row> rows = step(executor, columns_of(prompt, 0, Output::kLogits), {pages});
  engine::StateSlot slot = 0;
  for (std::size_t right = 1; !rows.empty() && rows.size() < known.size();
       right = (right + 1) % 3) {
    right = std::min(right, known.size() - rows.size() - 1);
    const auto position = static_cast<std::uint32_t>(prompt.size() + rows.size() - 1);
    std::vector<Column> columns{{rows.back().best, position, 0, Output::kLogits}};
    for (std::uint32_t i = 0; i <= right && i + rows.size() + 1 < known.size(); ++i) {
      Column draft = columns.back();
      ++draft.position;
      draft.token =
          (known[rows.size() + i].best + (i == right ? 1 : 0)) % executor.limits().vocabulary;
      if (states) draft.state_slot = (slot + 1 + i) % 4;
      columns.push_back(draft);
    }
    auto made = step(
        executor, columns, {pages},
        states ? std::vector<engine::StateUse>{{slot, slot}} : std::vector<engine::StateUse>{});
    if (made.size() <= right) break;
    rows.insert(rows.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(right + 1));
    if (states && right > 0) slot = columns[right].state_slot;
  }
  return rows;
}

void decode_side_by_side(Executor& executor, const std::vector<std::vector<TokenId>>& prompts,
                         const std::vector<std::vector<PageIndex>>& pages,
                         std::vector<std::vector<Row>>& rows) {
  std::vector<Column> columns;
  for (std::uint32_t s = 0; s < prompts.size(); ++s) {
    const auto position = static_cast<std::uint32_t>(prompts[s].size() + rows[s].size() - 1);
    columns.push_back({rows[s].back().best, position, s, Output::kLogits});
  }
  const auto made = step(executor, columns, pages);
  ASSERT_EQ(made.size(), prompts.size());
  for (std::size_t s = 0; s < prompts.size(); ++s)
    rows[s].push_back(made[s]);
}

void expect_same_bits(const std::vector<Row>& a, const std::vector<Row>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].best, b[i].best) << what << " step " << i;
    ASSERT_EQ(std::memcmp(&a[i].logprob, &b[i].logprob, 4), 0) << what << " step " << i;
    ASSERT_EQ(a[i].logits.size(), b[i].logits.size());
    ASSERT_EQ(std::memcmp(a[i].logits.data(), b[i].logits.data(), a[i].logits.size() * 4), 0)
        << what << " step " << i;
    ASSERT_EQ(a[i].hidden.size(), b[i].hidden.size());
    ASSERT_EQ(std::memcmp(a[i].hidden.data(), b[i].hidden.data(), a[i].hidden.size() * 4), 0)
        << what << " step " << i;
  }
}

double counter_of(const Executor& executor, const std::string& name) {
  for (const auto& each : executor.counters()) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return -1;
}

bool has_units(const Executor& executor) {
  return executor.numerics_id().find("/units") != std::string::npos;
}

}  // namespace bulkhead::forward
