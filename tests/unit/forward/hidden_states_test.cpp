// Hidden states, from which embeddings are made: their values under each mapping, that a state
// depends on its sequence alone, and the embeddings that the engine makes of them.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "reference.hpp"
#include "transformer_harness.hpp"
#include "worker/engine/engine.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::forward {
namespace {

class HiddenStates : public TransformerTest {};

// Returns at most `count` columns of a prompt, from position `first` on. Each column asks for its hidden state.
std::vector<Column> hidden_columns_of(const std::vector<TokenId>& prompt, std::uint32_t sequence,
                                      std::size_t first = 0, std::size_t count = SIZE_MAX) {
  std::vector<Column> columns = columns_of(prompt, sequence, Output::kHidden, first, count);
  for (Column& column : columns)
    column.output = Output::kHidden;
  return columns;
}

// Returns the states of a prompt's columns, computed in steps of `chunk` columns.
std::vector<Row> states_of(Executor& executor, const std::vector<TokenId>& prompt,
                           std::uint32_t sequence, std::size_t chunk,
                           const std::vector<std::vector<PageIndex>>& pages) {
  std::vector<Row> rows;
  for (std::size_t at = 0; at < prompt.size(); at += chunk) {
    const std::vector<Row> made =
        step(executor, hidden_columns_of(prompt, sequence, at, chunk), pages);
    rows.insert(rows.end(), made.begin(), made.end());
  }
  EXPECT_EQ(rows.size(), prompt.size());
  return rows;
}

// The matrix that makes logits of a hidden state, in double.
class OutputMatrix {
 public:
  explicit OutputMatrix(const model::GgufFile& file) {
    const model::TensorInfo* tensor = file.find_tensor("output.weight");
    if (tensor == nullptr) tensor = file.find_tensor("token_embd.weight");
    for (std::size_t at = 0; at < tensor->data.size(); at += tensor->row_bytes()) {
      rows_.push_back(reference::dequantize(
          tensor->type, tensor->data.subspan(at, tensor->row_bytes()), tensor->ne[0]));
    }
  }

  std::size_t rows() const { return rows_.size(); }
  double logit(std::size_t token, std::span<const float> state) const {
    return std::inner_product(state.begin(), state.end(), rows_[token].begin(), 0.0);
  }
  // Returns the sum of the magnitudes of a logit's terms.
  double magnitude(std::size_t token, std::span<const float> state) const {
    double sum = 0;
    for (std::size_t i = 0; i < state.size(); ++i)
      sum += std::abs(rows_[token][i] * static_cast<double>(state[i]));
    return sum;
  }

 private:
  std::vector<std::vector<double>> rows_;
};

// Expects that the device's own logits are within the error of its product. Matrix units take the
// state as halves, whose rounding is 2^-11 of an entry, and weights within 7e-5
// (gpu/kernels/README.md).
void expect_logits_of(const OutputMatrix& matrix, const Row& with_state, const Row& with_logits,
                      bool units) {
  ASSERT_EQ(with_logits.logits.size(), matrix.rows());
  const double bound = units ? 6e-4 : 1e-5;
  double worst = 0;
  for (std::size_t token = 0; token < matrix.rows(); ++token) {
    const double apart =
        std::abs(matrix.logit(token, with_state.hidden) - with_logits.logits[token]);
    worst = std::max(worst, apart / matrix.magnitude(token, with_state.hidden));
  }
  EXPECT_LT(worst, bound);
  EXPECT_EQ(with_state.best, with_logits.best);
}

// Expects that the last state gives the log-probabilities of the float64 evaluation.
void expect_evaluation(const OutputMatrix& matrix, const Row& row, const nlohmann::json& first) {
  std::vector<double> logits(matrix.rows());
  for (std::size_t token = 0; token < logits.size(); ++token)
    logits[token] = matrix.logit(token, row.hidden);
  double sum = 0;
  const double best = std::ranges::max(logits);
  for (const double logit : logits)
    sum += std::exp(logit - best);
  for (const auto& ranked : first["top"]) {
    const double logprob = logits[ranked[0].get<TokenId>()] - best - std::log(sum);
    EXPECT_NEAR(logprob, ranked[1].get<double>(), 2e-2) << ranked;
  }
}

// One of the models has a scaled gain. A CPU computes that model only with its own mapping.
TEST_F(HiddenStates, AreWhatLogitsAreMadeOf) {
  for (const std::string& name : {std::string("builtin"), or_builtin("tiny-granite-Q4_K_M")}) {
    for (const bool lanes : {false, true}) {
      SCOPED_TRACE(name + (lanes ? ", lanes" : ", the device's own mapping"));
      if (lanes && name != "builtin" && on_cpu()) continue;
      Options options;
      options.lanes = lanes;
      if (on_cpu()) options.chunk = kNarrow;
      const Loaded model = load(name, options);
      ASSERT_NE(model.executor, nullptr);
      Executor& executor = *model.executor;
      const OutputMatrix matrix(*model.file);
      const nlohmann::json each = expected(name)["cases"][1];
      const auto prompt = each["prompt_tokens"].get<std::vector<TokenId>>();
      const auto pages = pages_for(executor, static_cast<std::uint32_t>(prompt.size()));
      const auto last = [&](Output output) {
        std::vector<Row> rows;
        for (std::size_t at = 0; at < prompt.size(); at += options.chunk)
          rows = step(executor, columns_of(prompt, 0, output, at, options.chunk), {pages});
        return rows;
      };
      const auto states = last(Output::kHidden), logits = last(Output::kLogits);
      ASSERT_EQ(states.size(), 1U);
      ASSERT_EQ(logits.size(), 1U);
      ASSERT_EQ(states[0].hidden.size(), executor.limits().embedding);
      ASSERT_NO_FATAL_FAILURE(
          expect_logits_of(matrix, states[0], logits[0], !lanes && has_units(executor)));
      expect_evaluation(matrix, states[0], each["greedy"][0]);
    }
  }
}

// A mapping, and the optimisations that decide where a step's memory lies and how it is submitted.
struct Setting {
  const char* name;
  bool lanes, pool, ring;
};
constexpr Setting kSettings[] = {{"the device's own mapping", false, true, true},
                                 {"lanes", true, true, true},
                                 {"without the pool", false, false, true},
                                 {"without the ring", false, true, false}};

constexpr double kSlots = 2;  // steps in flight

TEST_F(HiddenStates, DependOnTheirSequenceAlone) {
  const engine::Choice choice;
  std::vector<Row> plain;
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE(setting.name);
    Options options;
    options.lanes = setting.lanes;
    options.max_batch = 16;  // and as many outputs of a step
    options.gpu = [&](config::GpuOptimizations& gpu) {
      gpu.memory_pool.enabled = setting.pool;
      gpu.command_buffer_ring.enabled = setting.ring;
    };
    const Loaded model = load(any_model(), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    const double recordings = counter_of(executor, "ring_recordings"),
                 allocations = counter_of(executor, "device_allocations");
    const std::vector<TokenId> all = some_prompt(22);
    const std::vector<TokenId> prompt(all.begin() + 9, all.end()),
        other(all.begin() + 4, all.end());
    const std::vector<std::vector<PageIndex>> pages{
        pages_for(executor, 40, 0), pages_for(executor, 40, 1), pages_for(executor, 40, 2)};
    const auto whole = states_of(executor, prompt, 0, prompt.size(), pages);
    for (const std::size_t chunk : {1U, 5U}) {
      expect_same_bits(states_of(executor, prompt, 1, chunk, pages), whole,
                       "chunks of " + std::to_string(chunk));
    }
    // The sequence is computed between others that ask for other outputs.
    std::vector<Column> columns = columns_of(other, 0, Output::kLogits);
    const std::vector<Column> last = columns_of(all, 2, Output::kSampled);
    columns.insert(columns.end(), last.begin(), last.end());
    columns.back().choice = &choice;
    const auto others = step(executor, columns, pages);
    ASSERT_EQ(others.size(), 2U);
    const std::vector<Column> hidden = hidden_columns_of(prompt, 1);
    columns.insert(columns.begin() + static_cast<std::ptrdiff_t>(other.size()), hidden.begin(),
                   hidden.end());
    const auto together = step(executor, columns, pages);
    ASSERT_EQ(together.size(), prompt.size() + 2);
    expect_same_bits({together.begin() + 1, together.end() - 1}, whole, "in company");
    expect_same_bits({together.front(), together.back()}, others, "the company");
    if (setting.pool && setting.ring) {
      EXPECT_EQ(counter_of(executor, "ring_recordings"), recordings + kSlots)
          << "hidden states beside draws are recorded at their first use, for each slot";
      EXPECT_EQ(counter_of(executor, "device_allocations"), allocations);
    }
    if (setting.lanes) continue;  // another order of additions
    if (plain.empty()) plain = whole;
    expect_same_bits(whole, plain, "with this setting");
  }
}

// An output of any kind may have its hidden state besides, and is what it is without.
TEST_F(HiddenStates, ComeBesideOtherOutputs) {
  const Loaded model = load(any_model());
  ASSERT_NE(model.executor, nullptr);
  Executor& executor = *model.executor;
  const engine::Choice choice;
  const std::vector<TokenId> prompt = some_prompt(11);
  const std::vector<std::vector<PageIndex>> pages{pages_for(executor, 40)};
  const auto want = step(executor, columns_of(prompt, 0, Output::kHidden), pages);
  ASSERT_EQ(want.size(), 1U);
  for (const Output output : {Output::kGreedy, Output::kSampled, Output::kLogits}) {
    std::vector<Column> columns = columns_of(prompt, 0, output);
    columns.back().choice = &choice;
    const auto plain = step(executor, columns, pages);
    columns.back().tells_hidden = true;
    const auto told = step(executor, columns, pages);
    ASSERT_EQ(plain.size(), 1U);
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told[0].best, plain[0].best);
    EXPECT_EQ(told[0].logprob, plain[0].logprob);
    EXPECT_EQ(told[0].logits, plain[0].logits);
    EXPECT_TRUE(plain[0].hidden.empty());
    EXPECT_EQ(told[0].hidden, want[0].hidden);
  }
}

// Each step in flight has its own memory for them.
TEST_F(HiddenStates, AreNotThoseOfTheNextStep) {
  for (const bool lanes : {false, true}) {
    Options options;
    options.lanes = lanes;
    const Loaded model = load(any_model(), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    ASSERT_GT(executor.limits().steps_in_flight, 1U);
    const std::vector<std::vector<PageIndex>> pages{pages_for(executor, 40, 0),
                                                    pages_for(executor, 40, 1)};
    const std::vector<Column> columns = hidden_columns_of(some_prompt(4), 0),
                              others = hidden_columns_of(some_prompt(9), 1);
    const auto want = step(executor, columns, pages);
    ASSERT_EQ(want.size(), columns.size());
    const std::vector<std::span<const PageIndex>> sequences(pages.begin(), pages.end());
    ASSERT_TRUE(executor.submit({columns, sequences}).ok());
    ASSERT_TRUE(executor.submit({others, sequences}).ok());
    const auto outputs = executor.wait();
    ASSERT_TRUE(outputs.ok()) << outputs.error().message();
    ASSERT_EQ(outputs->size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal((*outputs)[i].hidden, want[i].hidden)) << "column " << i;
    }
    EXPECT_TRUE(executor.wait().ok());
  }
}

// The embeddings that the engine makes of inputs, on a device.
class Pooled {
 public:
  Pooled(Executor& executor, const model::Tokenizer& tokenizer, engine::Pooling pooling)
      : language_{&tokenizer, jinja::Chat()},
        engine_(executor, language_, options_of(pooling), [this](const ipc::FromWorker& message) {
          if (const auto* const embedded = std::get_if<ipc::Embedded>(&message))
            values_[embedded->request] = embedded->values;
        }) {}

  void embed(std::uint64_t id, const std::vector<TokenId>& tokens) {
    engine_.embed({RequestId{id}, tokens});
  }
  void generate(std::uint64_t id, const std::vector<TokenId>& tokens) {
    ipc::Submit submit;
    submit.request = RequestId{id};
    submit.prompt = tokens;
    submit.sampling.temperature = id % 2 == 0 ? 0 : 0.8F;
    submit.max_tokens = 6;
    submit.ignore_eos = true;
    engine_.submit(std::move(submit));
  }
  void run() {
    while (engine_.outstanding() > 0) {
      const auto ran = engine_.turn([] {});
      ASSERT_TRUE(ran.ok()) << ran.error().message();
      ASSERT_TRUE(*ran);
    }
  }
  const std::vector<float>& values(std::uint64_t id) { return values_[RequestId{id}]; }

 private:
  static engine::EngineOptions options_of(engine::Pooling pooling) {
    engine::EngineOptions options;
    options.pooling = pooling;
    options.scheduler = {.max_batch = 4, .prefill_chunk = 9, .prefix_cache = true};
    return options;
  }

  engine::Language language_;
  std::map<RequestId, std::vector<float>> values_;
  engine::Engine engine_;
};

TEST_F(HiddenStates, ArePooledToTheSameEmbeddingInAnyCompany) {
  for (const bool lanes : {false, true}) {
    // The tests above compare the states that the engine pools, for either mapping. GPUs' kernels
    // are slow on a CPU, so this test leaves them out there.
    if (lanes && on_cpu()) continue;
    Options options;
    options.lanes = lanes;
    options.max_batch = 16;
    const Loaded model = load(any_model(), options);
    ASSERT_NE(model.executor, nullptr);
    Executor& executor = *model.executor;
    auto tokenizer = model::Tokenizer::from_gguf(*model.file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    // They begin with the same page.
    const std::vector<TokenId> prompt = some_prompt(36), other = some_prompt(45);
    const std::vector<Row> rows = states_of(executor, prompt, 0, 16, {pages_for(executor, 40)});
    ASSERT_EQ(rows.size(), prompt.size());
    for (const engine::Pooling pooling : {engine::Pooling::kLast, engine::Pooling::kMean}) {
      std::vector<float> want = rows.back().hidden;
      for (std::size_t i = 0; pooling == engine::Pooling::kMean && i < want.size(); ++i) {
        double sum = 0;
        for (const Row& row : rows)
          sum += row.hidden[i];
        want[i] = static_cast<float>(sum / static_cast<double>(rows.size()));
      }
      {
        Pooled alone(executor, **tokenizer, pooling);
        alone.embed(1, prompt);
        ASSERT_NO_FATAL_FAILURE(alone.run());
        EXPECT_EQ(alone.values(1), want);
      }
      Pooled together(executor, **tokenizer, pooling);
      together.generate(2, other);
      together.embed(3, other);
      together.embed(1, prompt);
      together.generate(4, prompt);
      ASSERT_NO_FATAL_FAILURE(together.run());
      EXPECT_EQ(together.values(1), want);
      EXPECT_NE(together.values(3), want);
      EXPECT_EQ(together.values(3).size(), want.size());
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
