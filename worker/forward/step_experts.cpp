#include "worker/forward/step_experts.hpp"

#include <algorithm>

namespace bulkhead::forward {

namespace k = gpu::kernels;

bool ExpertSteps::chooses_in_products(const model::Router& router) const {
  return k::chooses_in_products(context_.mapping, router_shape(router),
                                router.expert_scales != kAbsent, columns_);
}

Status ExpertSteps::add(const RouteStep& step) {
  const k::RouterShape router = router_shape(step.router);
  const k::RouteLayout layout = k::route_layout(router, columns_);
  const std::uint64_t routes = at(step.routes);
  k::RoutePush push{};
  push.in_address = at(model::kStream);
  push.gain = context_.weights.vector(step.router.gain);
  push.router = context_.weights.vector(step.router.rows);
  push.logits = routes + layout.logits;
  push.scales = step.makes_scales ? at(Scratch::kScales) : 0;
  push.parameters = parameters();
  push.bias = context_.weights.vector(step.router.bias);
  push.width = context_.graph.embedding;
  push.in_stride = stride(model::kStream);
  push.rows = router.rows();
  push.epsilon = step.router.epsilon;
  const k::RouteVariant route = k::route(context_.mapping, router, columns_);
  const auto up = [](std::uint32_t count, std::uint32_t each) { return (count + each - 1) / each; };
  BULKHEAD_RETURN_IF_ERROR(emit_.dispatch(
      route.spec, gpu::push_bytes(push),
      {up(columns_, route.columns_per_workgroup), up(push.rows, route.rows_per_workgroup), 1,
       std::uint64_t{push.rows} * push.width * 4}));
  if (chooses_in_products(step.router)) return {};
  emit_.barrier();

  k::ChoosePush choose{};
  choose.logits = push.logits;
  choose.chosen = routes + layout.chosen;
  choose.weights = routes + layout.weights;
  choose.list = routes + layout.list;
  choose.tiles = routes + layout.tiles;
  choose.parameters = push.parameters;
  choose.scale = step.router.scale;
  choose.expert_scales = context_.weights.vector(step.router.expert_scales);
  choose.choice_bias = context_.weights.vector(step.router.choice_bias);
  const std::uint32_t tile = k::expert_tile(context_.mapping, router, columns_);
  const auto dispatch = [&](k::ChoosePart part) {
    const k::ChooseVariant variant = k::choose(context_.mapping, router, part, columns_, tile);
    return emit_.dispatch(variant.spec, gpu::push_bytes(choose), {variant.workgroups});
  };
  if (columns_ == 1) return dispatch(k::ChoosePart::kOneColumn);
  if (k::chooses_at_once(context_.mapping, columns_)) return dispatch(k::ChoosePart::kBoth);
  BULKHEAD_RETURN_IF_ERROR(dispatch(k::ChoosePart::kChoose));
  emit_.barrier();
  return dispatch(k::ChoosePart::kSort);
}

bool ExpertSteps::sums(const model::Router& router, MatrixIndex down) const {
  if (down == kAbsent) return false;
  k::MatvecShape shape = product_shape(*context_.plan.matrices[down].packed, k::Epilogue::kStore);
  shape.together = router.used;
  return k::sums_experts(context_.mapping, shape, router_shape(router), columns_);
}

Status ExpertSteps::add(const ExpertProductsStep& step) {
  // Only the first product writes down which experts it has chosen, and only if later products need them.
  k::ChoosesHere chooses = k::ChoosesHere::kByRoute;
  if (chooses_in_products(step.router))
    chooses =
        sums(step.router, step.summed_down) ? k::ChoosesHere::kHere : k::ChoosesHere::kHereAndTells;
  for (const ProductStep& product : step.products) {
    BULKHEAD_RETURN_IF_ERROR(multiply(step.router, step.routes, product, chooses));
    if (chooses == k::ChoosesHere::kHereAndTells) chooses = k::ChoosesHere::kHere;
  }
  return {};
}

k::ExpertPush ExpertSteps::push_of(const ProductStep& product, const k::MatvecShape& shape) const {
  const DeviceMatrix& matrix = context_.weights.matrices[product.matrix];
  k::ExpertPush push{};
  push.product.quants = matrix.quants();
  push.product.high = matrix.high();
  push.product.scales = matrix.scales();
  push.product.supers = matrix.supers();
  push.product.x = at(product.in);
  push.product.out_address = at(product.out);
  push.product.parameters = parameters();
  push.product.rows = push.product.written_rows = shape.rows;
  push.product.groups = shape.groups;
  push.product.x_stride = k::input_stride(context_.mapping, matrix.width);
  push.product.out_stride = stride(product.out);
  push.product.count_word = k::kColumnCountWord;
  if (product.operands != kAbsent) {
    const std::size_t index = slot_ * context_.plan.operands.size() + product.operands;
    push.product.fused = activations_.operands.slice().address + index * sizeof(k::FusedOperands);
  }
  return push;
}

Status ExpertSteps::add(const SliceProductStep& step) {
  const ProductStep& product = step.product;
  const DeviceMatrix& matrix = context_.weights.matrices[product.matrix];
  k::MatvecShape shape =
      product_shape(*context_.plan.matrices[product.matrix].packed, product.epilogue);
  shape.together = step.slices;
  const k::SliceProduct made = k::slice_product(context_.mapping, shape, step.slices, columns_);
  k::ExpertPush push = push_of(product, shape);
  push.product.out_stride = shape.rows;  // the experts' columns follow each other
  const std::uint32_t blocks =
      (shape.rows + made.variant.rows_per_workgroup - 1) / made.variant.rows_per_workgroup;
  return emit_.dispatch(made.variant.spec, gpu::push_bytes(push),
                        {made.workgroups, blocks, 1, matrix.layout.bytes_read()});
}

k::MatvecShape ExpertSteps::shape_of(const model::Router& router,
                                     const ProductStep& product) const {
  const ModelPlan& plan = context_.plan;
  k::MatvecShape shape = product_shape(*plan.matrices[product.matrix].packed, product.epilogue);
  shape.permuted_out = plan.activations[product.out].form == model::Activation::Form::kInput;
  shape.gate = product.gate;
  shape.biased = product.biased;
  shape.scaling = product.scaled ? k::Scaling::kByMemory : k::Scaling::kNone;
  shape.together = router.used;
  return shape;
}

Status ExpertSteps::multiply(const model::Router& of, model::ActivationIndex routes,
                             const ProductStep& product, k::ChoosesHere chooses) {
  const ModelPlan& plan = context_.plan;
  const k::RouterShape router = router_shape(of);
  const k::RouteLayout layout = k::route_layout(router, columns_);
  const DeviceMatrix& matrix = context_.weights.matrices[product.matrix];
  const bool makes_input = plan.activations[product.out].form == model::Activation::Form::kInput;
  const k::MatvecShape shape = shape_of(of, product);
  // An expert's input is the column itself, or what that expert has made of it.
  const std::uint32_t share = router.used / plan.activations[product.in].per_column;
  k::MatvecVariant variant = k::expert_product(context_.mapping, shape, router, share, columns_);
  if (chooses != k::ChoosesHere::kByRoute) k::choose_in_product(variant, router, of.scale, chooses);
  k::ExpertPush push = push_of(product, shape);
  push.product.written_rows =
      makes_input ? k::input_padded(context_.mapping, shape.rows) : shape.rows;
  push.tiles = at(routes) + layout.tiles;
  push.list = at(routes) + layout.list;
  const std::uint32_t tiles = k::most_tiles(router, columns_, variant.columns_per_workgroup);
  const std::uint32_t blocks =
      (push.product.written_rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup;
  const std::uint64_t read = std::min(tiles, router.experts);
  return emit_.dispatch(variant.spec, gpu::push_bytes(push),
                        {tiles, blocks, 1, matrix.layout.bytes_read() / router.experts * read});
}

Status ExpertSteps::multiply_and_sum(const MixStep& step) {
  const ModelPlan& plan = context_.plan;
  const DeviceMatrix& matrix = context_.weights.matrices[step.down.matrix];
  const k::RouterShape router = router_shape(step.router);
  const k::MatvecShape shape = shape_of(step.router, step.down);
  const k::ChoosesHere chooses =
      chooses_in_products(step.router) ? k::ChoosesHere::kHere : k::ChoosesHere::kByRoute;
  const k::MatvecVariant variant = k::expert_sum(shape, router, step.router.scale, chooses);
  k::ExpertPush push = push_of(step.down, shape);
  push.product.out_address = at(step.out);
  push.product.out_stride = stride(step.out);
  if (step.operands != kAbsent && plan.operands[step.operands].next_input != kAbsent)
    push.product.written_rows = k::input_padded(context_.mapping, shape.rows);
  push.tiles = at(step.routes) + k::route_layout(router, columns_).tiles;
  const std::uint32_t blocks =
      (push.product.written_rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup;
  return emit_.dispatch(variant.spec, gpu::push_bytes(push),
                        {blocks, 1, 1, matrix.layout.bytes_read() / router.experts * router.used});
}

Status ExpertSteps::add(const MixStep& step) {
  if (sums(step.router, step.summed_down)) return multiply_and_sum(step);
  BULKHEAD_RETURN_IF_ERROR(multiply(step.router, step.routes, step.down, k::ChoosesHere::kByRoute));
  emit_.barrier();
  return mix(step);
}

Status ExpertSteps::mix(const MixStep& step) {
  const ModelPlan& plan = context_.plan;
  const k::RouterShape router = router_shape(step.router);
  const k::RouteLayout layout = k::route_layout(router, columns_);
  k::MixPush push{};
  push.results = at(step.down.out);
  push.weights = at(step.routes) + layout.weights;
  push.out_address = at(step.out);
  push.parameters = parameters();
  push.width = push.padded_width = plan.activations[step.out].width;
  push.results_stride = stride(step.down.out);
  push.out_stride = stride(step.out);
  if (step.shared != kAbsent) {
    push.shared_result = at(step.shared);
    push.shared_stride = stride(step.shared);
  }
  if (step.operands != kAbsent && plan.operands[step.operands].next_input != kAbsent) {
    const PlannedOperands& next = plan.operands[step.operands];
    push.next_gain = context_.weights.vector(next.next_gain);
    push.next_input = at(next.next_input);
    push.next_stride = stride(next.next_input);
    push.padded_width = k::input_padded(context_.mapping, push.width);
  }
  const k::MixVariant variant = k::mix(context_.mapping, router, step.out == model::kStream);
  const std::uint32_t parts =
      (push.padded_width + variant.entries_per_workgroup - 1) / variant.entries_per_workgroup;
  return emit_.dispatch(
      variant.spec, gpu::push_bytes(push),
      {columns_, parts, 1, std::uint64_t{columns_} * push.width * 4 * (router.used + 2)});
}

}  // namespace bulkhead::forward
