#include "worker/forward/step_attention.hpp"

#include <algorithm>
#include <variant>

namespace bulkhead::forward {

namespace k = gpu::kernels;

AttentionBorders attention_borders(const StepContext& context, std::uint32_t columns) {
  AttentionBorders borders;
  for (const PlanStep& step : context.plan.steps) {
    const auto* const attend = std::get_if<model::Attend>(&step);
    if (attend == nullptr) continue;
    const k::AttentionShape shape = attention_shape(context.graph, *attend, context.kv_format);
    for (const k::AttentionRange& range : k::attention_ranges(context.mapping, shape, columns)) {
      if (range.from > 0 && range.from < context.context)
        borders.first = std::min(borders.first, range.from);
      if (range.until < context.context) borders.last = std::max(borders.last, range.until);
    }
  }
  return borders;
}

Positions positions_of(std::span<const engine::Column> columns, const AttentionBorders& borders) {
  if (borders.last == 0) return Positions::kAny;
  const auto all = [&](const auto& lies) {
    return std::all_of(columns.begin(), columns.end(),
                       [&](const engine::Column& column) { return lies(column.position); });
  };
  if (all([&](std::uint32_t position) { return position < borders.first; }))
    return Positions::kBefore;
  if (all([&](std::uint32_t position) { return position >= borders.last; }))
    return Positions::kBehind;
  return Positions::kAny;
}

std::uint64_t AttentionSteps::counts() const {
  if (!in_chain()) return activations_.attention_counts.slice().address;
  return context_.chain.counts.address() +
         std::uint64_t{chain_links(context_.plan)} * k::kChainCountBytes;
}

template <typename Rotation, typename Push>
void AttentionSteps::fill_rotation(const Rotation& rotate, Push& push) const {
  const DeviceRope rope = context_.weights.rope(rotate.rope);
  push.fine = rope.fine;
  push.coarse = rope.coarse;
  push.rope_pairs = rope.pairs;
  push.parameters = parameters();
  push.pages = pages_of(rotate.kv);
  push.keys = kv(rotate.kv).keys;
  push.q_out = at(Scratch::kRotatedQ);
  push.epsilon = rotate.epsilon;
  push.q_scale = q_scale(rotate.scale, rotate.heads);
}

template <typename Push>
void AttentionSteps::fill_output(const model::Attend& attend, const k::AttentionShape& shape,
                                 Push& push) const {
  const std::uint32_t width = context_.plan.activations[attend.out].width;
  push.parameters = parameters() + (shape.both_ways ? context_.parameter_layout.sights : 0);
  push.out_address = at(attend.out);
  push.out_stride = stride(attend.out);
  push.padded_width = shape.plain_out ? width : k::input_padded(context_.mapping, width);
  push.sinks = context_.weights.vector(attend.rules.sinks);
}

Status AttentionSteps::add(const model::Rotate& rotate) {
  k::RopeKvPush push{};
  fill_rotation(rotate, push);
  push.qkv = at(rotate.qkv);
  push.bias = context_.weights.vector(rotate.bias);
  push.q_gain = context_.weights.vector(rotate.q_gain);
  push.k_gain = context_.weights.vector(rotate.k_gain);
  push.values = kv(rotate.kv).values;
  push.in_stride = stride(rotate.qkv);
  k::AttentionShape shape =
      attention_shape(context_.graph, rotate.heads, rotate.rope, context_.kv_format);
  shape.page_stride = context_.page_stride(rotate.kv);
  k::RopeKvRules rules;
  if (rotate.norms_values) rules.values = k::ValueNorm::kUnit;
  rules.norm_last = rotate.norms_turned;
  rules.temperature = rotate.temperature;
  rules.temperature_span = rotate.temperature_span;
  return emit_.dispatch(k::rope_kv(context_.mapping, shape, rules), gpu::push_bytes(push),
                        {columns_, shape.heads + (rotate.stores_nothing ? 0 : 2 * shape.kv_heads)});
}

Status AttentionSteps::add(const model::RotateLatent& rotate) {
  k::RopeLatentPush push{};
  fill_rotation(rotate, push);
  push.q = at(rotate.q);
  push.absorbed = at(rotate.absorbed);
  push.row = at(rotate.row) + std::uint64_t{rotate.first} * 4;
  push.gain = context_.weights.vector(rotate.gain);
  push.q_head = stride(rotate.q) / rotate.heads.heads;
  push.row_stride = stride(rotate.row);
  k::AttentionShape shape = attention_shape(context_.graph, rotate, context_.kv_format);
  shape.page_stride = context_.page_stride(rotate.kv);
  return emit_.dispatch(
      k::rope_latent(context_.mapping, shape, rotate.temperature, rotate.temperature_span),
      gpu::push_bytes(push), {columns_, shape.heads + 1});
}

Status AttentionSteps::add(const model::Attend& attend) {
  k::AttentionShape shape = attention_shape(context_.graph, attend, context_.kv_format);
  shape.page_stride = context_.page_stride(attend.kv);
  k::AttentionPush push{};
  fill_output(attend, shape, push);
  push.q = at(Scratch::kRotatedQ);
  push.keys = kv(attend.kv).keys;
  push.values = kv(attend.kv).values;
  push.pages = pages_of(attend.kv);
  push.most_splits = k::partial_splits(context_.mapping, shape, columns_, context_.context);
  if (push.most_splits > 0) {
    push.partials = at(Scratch::kPartials);
    push.counts = counts();
  }
  for (const k::AttentionRange& range : k::attention_ranges(context_.mapping, shape, columns_)) {
    const bool has_columns = range.from < context_.context &&
                             !(positions_ == Positions::kBefore && range.from > 0) &&
                             !(positions_ == Positions::kBehind && range.until < context_.context);
    if (!has_columns) continue;
    BULKHEAD_RETURN_IF_ERROR(attend_range(attend, shape, range, push));
  }
  return {};
}

Status AttentionSteps::attend_range(const model::Attend& attend, const k::AttentionShape& shape,
                                    const k::AttentionRange& range, k::AttentionPush push) {
  const k::Mapping& mapping = context_.mapping;
  const std::uint32_t seen = std::min(k::positions_seen(shape, context_.context), range.until);
  const k::AttentionMode mode = k::attention_mode(mapping, shape, range, columns_, seen);
  // On an H200, to load keys and values into nearer caches early saves time with up to four columns, and costs time
  // with eight or more.
  const bool near_first = in_chain() && columns_ <= k::kFewAttentionColumns;
  const k::AttentionVariant variant =
      k::attention(mapping, shape, range, mode, columns_, seen, near_first);
  const Extent extent{variant.x, variant.y, variant.z};
  if (mode == k::AttentionMode::kPartial) {
    push.out_address = push.partials;
    BULKHEAD_RETURN_IF_ERROR(emit_.dispatch(variant.spec, gpu::push_bytes(push), extent));
    emit_.barrier();
    return combine(attend, shape);
  }
  if (mode == k::AttentionMode::kTiles || mode == k::AttentionMode::kSpreadTiles) {
    const k::AttentionVariant alone = k::attention_alone(mapping, shape, range, columns_);
    BULKHEAD_RETURN_IF_ERROR(
        emit_.dispatch(alone.spec, gpu::push_bytes(push), {alone.x, alone.y, alone.z}));
  }
  return emit_.dispatch(variant.spec, gpu::push_bytes(push), extent);
}

Status AttentionSteps::combine(const model::Attend& attend, const k::AttentionShape& shape) {
  k::AttentionCombinePush push{};
  fill_output(attend, shape, push);
  push.partials = at(Scratch::kPartials);
  return emit_.dispatch(k::attention_combine(context_.mapping, shape), gpu::push_bytes(push),
                        {columns_, shape.heads});
}

}  // namespace bulkhead::forward
