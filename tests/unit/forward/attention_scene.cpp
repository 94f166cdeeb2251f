#include "attention_scene.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "reference.hpp"

namespace bulkhead::forward {
namespace {

// Makes one position's key or value in a head's part of a page, and returns its entries. Bytes are those that a kernel
// may write, in blocks whose scale is sometimes zero or a subnormal half.
std::vector<double> make_entries(const k::AttentionShape& shape, std::uint8_t* at,
                                 std::uint32_t slot, bool is_value, std::mt19937& random) {
  const std::uint32_t padded = shape.head_padded(), size = shape.kv == k::KvFormat::kQ8 ? 1 : 2;
  const auto place = [&](std::uint32_t i) {
    return (is_value ? slot * padded + i : (i / 8 * 32 + slot) * 8 + i % 8) * size;
  };
  std::vector<double> entries(shape.head);
  if (shape.kv == k::KvFormat::kQ8) {
    const std::uint32_t blocks = padded / 32;
    for (std::uint32_t i = 0; i < padded; i += 32) {
      const std::uint32_t exponent = random() % 8 == 0 ? 0 : 8, block = i / 32;
      const auto scale = static_cast<std::uint16_t>(exponent << 10 | random() % 1024);
      std::memcpy(at + padded * 32 + (is_value ? slot * blocks + block : block * 32 + slot) * 2,
                  &scale, 2);
      for (std::uint32_t e = i; e < i + 32; ++e) {
        const int step = e < shape.head ? static_cast<int>(random() % 255) - 127 : 0;
        at[place(e)] = static_cast<std::uint8_t>(step + 128);
        if (e < shape.head) entries[e] = step * reference::half(scale);
      }
    }
    return entries;
  }
  std::normal_distribution<float> normal;
  for (std::uint32_t i = 0; i < padded; ++i) {
    // Rounds towards zero to eleven bits, so that a half holds the value exactly.
    const float drawn = i < shape.head ? normal(random) : 0;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(drawn) & 0xffffe000U;
    const auto half = static_cast<std::uint16_t>(std::abs(drawn) < 0x1p-14F
                                                     ? 0
                                                     : ((bits >> 16) & 0x8000U) |
                                                           ((((bits >> 23) & 255U) - 112U) << 10) |
                                                           ((bits >> 13) & 1023U));
    std::memcpy(at + place(i), &half, 2);
    if (i < shape.head) entries[i] = reference::half(half);
  }
  return entries;
}

}  // namespace

std::string AttentionCase::name() const {
  return "head of " + std::to_string(head) + ", " + std::to_string(heads) + " to " +
         std::to_string(kv_heads) + (window != 0 ? ", window " + std::to_string(window) : "") +
         (soft_cap != 0 ? ", cap" : "") + (sinks ? ", sinks" : "") +
         (kv == k::KvFormat::kQ8 ? ", pages of bytes" : "");
}

std::uint32_t AttentionScene::context() const {
  std::uint32_t last = 0;
  for (const k::ColumnEntry& column : columns)
    last = std::max(last, column.position);
  return last + 1;
}

bool AttentionScene::has_neighbour(std::uint32_t column, std::uint32_t first,
                                   std::uint32_t end) const {
  const auto is_neighbour = [&](std::uint32_t other) {
    return columns[other].page_table == columns[column].page_table;
  };
  return (column > first && is_neighbour(column - 1)) ||
         (column + 1 < end && is_neighbour(column + 1));
}

AttentionScene make_scene(const AttentionCase& each, const std::vector<Stretch>& runs,
                          std::mt19937& random) {
  AttentionScene s;
  s.mapping.units = true;
  s.mapping.lanes = 32;
  s.mapping.attention_split = each.split;
  s.mapping.attention_splits = each.splits;
  s.mapping.attention_together = true;
  s.shape = {each.head, each.heads,  each.kv_heads, each.kv,
             false,     each.window, each.soft_cap, each.sinks};
  s.stride = k::input_stride(s.mapping, each.heads * each.head);
  std::uint32_t page_count = 0;
  for (const Stretch& run : runs) {
    const auto start = static_cast<std::uint32_t>(s.pages.size());
    const std::uint32_t own = (run.first + run.count + 31) / 32;
    for (std::uint32_t i = 0; i < own; ++i)
      s.pages.push_back(page_count + own - 1 - i);
    page_count += own;
    for (std::uint32_t i = 0; i < run.count; ++i)
      s.columns.push_back({0, run.first + i, start, 0});
  }
  // In slots that no sequence has filled, two bytes are a half that is NaN, as a number or as a scale.
  const std::uint32_t padded = s.shape.head_padded();
  s.keys.assign(page_count * s.shape.page_bytes(), 0x7e);
  s.values = s.keys;
  s.exact_keys.assign(std::size_t{page_count} * each.kv_heads,
                      std::vector<double>(32 * std::size_t{each.head}));
  s.exact_values = s.exact_keys;
  std::size_t column = 0;
  for (const Stretch& run : runs) {
    const std::uint32_t start = s.columns[column].page_table;
    column += run.count;
    for (std::uint32_t p = s.first_seen(run.first) / 32 * 32; p < run.first + run.count; ++p) {
      const std::uint32_t page = s.pages[start + p / 32], slot = p % 32;
      for (std::uint32_t h = 0; h < each.kv_heads; ++h) {
        const std::size_t head = std::size_t{page} * each.kv_heads + h;
        const std::size_t base = head * 32 * k::kv_position_bytes(each.head, each.kv);
        std::ranges::copy(make_entries(s.shape, &s.keys[base], slot, false, random),
                          &s.exact_keys[head][slot * each.head]);
        std::ranges::copy(make_entries(s.shape, &s.values[base], slot, true, random),
                          &s.exact_values[head][slot * each.head]);
      }
    }
  }
  std::normal_distribution<float> normal;
  const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(each.head));
  for (std::size_t i = 0; i < s.columns.size() * each.heads; ++i) {
    for (std::uint32_t e = 0; e < padded; ++e)
      s.queries.push_back(e < each.head ? normal(random) * scale : 0);
  }
  for (std::uint32_t h = 0; h < each.heads; ++h)
    s.sinks.push_back(3 + normal(random));  // of the size of many weights' sum
  return s;
}

double largest_error(const AttentionScene& s, const std::vector<std::uint16_t>& got) {
  const std::uint32_t head = s.shape.head, padded = s.shape.head_padded();
  double largest = 0;
  bool rounded_once = true;
  for (std::uint32_t c = 0; c < s.columns.size(); c += 3) {
    for (const std::uint32_t h : {0U, s.shape.heads - 1}) {
      const std::uint32_t kv_head = h / (s.shape.heads / s.shape.kv_heads);
      std::vector<double> result(head);
      const double cap = s.shape.soft_cap * 1.4426950408889634;
      double sum = s.shape.sinks ? std::exp2(s.sinks[h]) : 0;
      for (std::uint32_t p = s.first_seen(s.columns[c].position); p <= s.columns[c].position; ++p) {
        const std::size_t page =
            std::size_t{s.pages[s.columns[c].page_table + p / 32]} * s.shape.kv_heads + kv_head;
        double score = 0;
        for (std::uint32_t i = 0; i < head; ++i)
          score += s.queries[(std::size_t{c} * s.shape.heads + h) * padded + i] *
                   s.exact_keys[page][p % 32 * head + i];
        const double weight = std::exp2(cap == 0 ? score : cap * std::tanh(score / cap));
        sum += weight;
        for (std::uint32_t i = 0; i < head; ++i)
          result[i] += weight * s.exact_values[page][p % 32 * head + i];
      }
      for (std::uint32_t i = 0; i < head; ++i) {
        const double made = reference::half(got[s.at(c, h * head + i)]);
        const double error = std::abs(made - result[i] / sum);
        // The result of the first position is its value, rounded to a half once.
        if (s.columns[c].position == 0 && !s.shape.sinks)
          rounded_once &= error <= std::abs(result[i] / sum) * 0x1p-10 + 0x1p-24;
        largest = error <= largest ? largest : error;  // NaN is larger
      }
    }
  }
  EXPECT_TRUE(rounded_once);
  return largest;
}

}  // namespace bulkhead::forward
