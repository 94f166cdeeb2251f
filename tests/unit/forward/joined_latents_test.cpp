// Files made before April 2025 join the matrices of keys and values of attention over latents to one tensor. This test
// joins these matrices in the fixtures. The joined files must give the same tokens as the fixtures.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "reference.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "transformer_harness.hpp"

namespace bulkhead::forward {
namespace {

using model::testing::GgufBuilder;

// Reads the keys and values at the beginning of a file.
class Head {
 public:
  explicit Head(const std::string& bytes) : bytes_(bytes) {}

  std::vector<std::pair<std::string, std::string>> metadata() {
    at_ = 16;
    std::vector<std::pair<std::string, std::string>> made;
    const auto count = next<std::uint64_t>();
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto length = next<std::uint64_t>();
      const std::string key = bytes_.substr(at_, length);
      at_ += length;
      const std::size_t begin = at_;
      skip(next<std::uint32_t>());
      made.emplace_back(key, bytes_.substr(begin, at_ - begin));
    }
    return made;
  }

 private:
  template <typename T>
  T next() {
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  void skip(std::uint32_t type) {
    constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    constexpr std::uint32_t kString = 8, kArray = 9;
    if (type == kArray) {
      const auto of = next<std::uint32_t>();
      const auto count = next<std::uint64_t>();
      for (std::uint64_t i = 0; i < count; ++i)
        skip(of);
    } else if (type == kString) {
      at_ += next<std::uint64_t>();
    } else {
      at_ += kSizes[type];
    }
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
};

std::vector<double> values_of(const model::TensorInfo& tensor) {
  std::vector<double> values;
  for (std::size_t row = 0; row < tensor.rows(); ++row) {
    const auto bytes = tensor.data.subspan(row * tensor.row_bytes(), tensor.row_bytes());
    const auto own = reference::dequantize(tensor.type, bytes, tensor.ne[0]);
    values.insert(values.end(), own.begin(), own.end());
  }
  return values;
}

// A tensor of floats: for each head its key's rows, then its value's.
std::vector<float> joined_rows(const model::TensorInfo& k, const model::TensorInfo& v) {
  const std::size_t plain = k.ne[0], latent = k.ne[1], value = v.ne[1], heads = k.ne[2];
  const std::vector<double> keys = values_of(k), values = values_of(v);
  std::vector<float> made;
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t row = 0; row < plain; ++row) {
      for (std::size_t i = 0; i < latent; ++i)
        made.push_back(static_cast<float>(keys[(head * latent + i) * plain + row]));
    }
    for (std::size_t i = head * value * latent; i < (head + 1) * value * latent; ++i)
      made.push_back(static_cast<float>(values[i]));
  }
  return made;
}

// Changes the keys to those that converters wrote then.
void make_keys_old(GgufBuilder& made, const model::GgufFile& file) {
  const auto number = [&file](const char* key) {
    return static_cast<std::uint32_t>(**file.get_uint(std::string("deepseek2.attention.") + key));
  };
  const auto replace = [&made](const char* name, std::uint32_t value) {
    const std::string key = std::string("deepseek2.attention.") + name;
    made.drop(key);
    made.u32(key, value);
  };
  replace("key_length", number("key_length_mla"));
  replace("value_length", number("value_length_mla"));
  replace("head_count_kv", number("head_count"));
  made.drop("deepseek2.attention.key_length_mla");
  made.drop("deepseek2.attention.value_length_mla");
}

std::string with_joined_latents(const std::string& bytes) {
  const auto file = model::testing::open_bytes(bytes);
  GgufBuilder made;
  made.metadata = Head(bytes).metadata();
  make_keys_old(made, **file);
  std::vector<std::string> contents;
  for (const model::TensorInfo& each : (*file)->tensors()) {
    std::string name(each.name);
    if (name.ends_with(".attn_v_b.weight")) continue;
    if (!name.ends_with(".attn_k_b.weight")) {
      made.tensor(name, {each.ne.begin(), each.ne.begin() + each.dimensions},
                  static_cast<std::uint32_t>(each.type));
      contents.emplace_back(reinterpret_cast<const char*>(each.data.data()), each.data.size());
      continue;
    }
    const std::string block = name.substr(0, name.rfind("attn_k_b"));
    const model::TensorInfo& values = *(*file)->find_tensor(block + "attn_v_b.weight");
    const std::vector<float> rows = joined_rows(each, values);
    made.tensor(block + "attn_kv_b.weight", {each.ne[1], rows.size() / each.ne[1]});
    contents.emplace_back(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
  }
  std::string all = made.bytes();
  const std::size_t begin = all.size() - made.data_bytes;
  for (std::size_t i = 0; i < contents.size(); ++i)
    contents[i].copy(all.data() + begin + made.tensors[i].offset, contents[i].size());
  return all;
}

class JoinedLatents : public TransformerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(JoinedLatents, ContinueAsTheDoubleEvaluation) {
  const std::string name = GetParam();
  if (!std::filesystem::exists(model_file(name))) GTEST_SKIP() << "no " << model_file(name);
  std::ifstream stream(model_file(name), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  const std::filesystem::path made =
      std::filesystem::temp_directory_path() / ("bulkhead-joined-" + std::to_string(::getpid()));
  std::ofstream(made.string() + ".gguf", std::ios::binary) << with_joined_latents(whole);
  const Loaded model = load(made.string());
  std::filesystem::remove(made.string() + ".gguf");
  ASSERT_NE(model.executor, nullptr);
  const nlohmann::json want = expected(name);
  for (const auto& each : want["cases"]) {
    const auto prompt = each["prompt_tokens"].get<std::vector<TokenId>>();
    if (prompt.size() > 64 && on_cpu()) continue;
    const auto& greedy = each["greedy"];
    const auto rows =
        generate(*model.executor, prompt,
                 on_cpu() ? std::min<std::size_t>(12, greedy.size()) : greedy.size(), 64);
    double worst = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto token = greedy[i]["token"].get<TokenId>();
      if (greedy[i].value("tie", false) && rows[i].best != token) break;
      ASSERT_EQ(rows[i].best, token) << "step " << i;
      const double difference = std::abs(rows[i].logprob - greedy[i]["logprob"].get<double>());
      worst = std::max(worst, difference);
      ASSERT_LT(difference, 2e-2) << "step " << i;
    }
    std::printf("%s, prompt of %zu: log-probabilities within %.5f\n", name.c_str(), prompt.size(),
                worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, JoinedLatents,
                         ::testing::Values("tiny-deepseek2-Q8_0", "tiny-deepseek2-yarn-Q4_K_M"));

}  // namespace
}  // namespace bulkhead::forward
