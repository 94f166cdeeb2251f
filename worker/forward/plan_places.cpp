// Says what each of a plan's steps reads and writes, which decides where barriers are needed.
#include <array>

#include "config/base/overloaded.hpp"
#include "worker/forward/model_plan.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using model::kStream;

namespace {

// The places after those of the activations. Pages and states, which sequences keep, count as one place.
constexpr std::uint32_t kScalesPlace = kMostActivations, kQPlace = 62, kKvPlace = 63;

constexpr Places place(std::uint32_t index) {
  if (index == model::kWaitingQ) index = kQPlace;
  if (index == model::kKept) index = kKvPlace;
  return Places{1} << index;
}

template <std::size_t count>
Places places(const std::array<model::ActivationIndex, count>& activations) {
  Places all = 0;
  for (const model::ActivationIndex each : activations)
    all |= place(each);
  return all;
}

}  // namespace

Access ModelPlan::places_of(const PlanStep& step) const {
  const auto next_input_of = [this](OperandsIndex index) -> Places {
    if (index == kAbsent || operands[index].next_input == kAbsent) return 0;
    return place(operands[index].next_input);
  };
  return std::visit(
      Overloaded{
          [&](const NormStep& s) {
            const Places out = place(s.norm.out);
            return Access{place(s.norm.in) | (s.norm.adds ? out : 0),
                          out | next_input_of(s.operands)};
          },
          [](const model::StandsAlone auto& operation) {
            return Access{places(operation.reads()), places(operation.writes())};
          },
          [](const ScalesStep&) {
            return Access{place(kStream), place(kScalesPlace)};
          },
          [&](const ProductsStep& s) {
            Access access;
            for (const ProductStep& product : s.products) {
              access.reads |= place(product.in);
              if (product.scaled) access.reads |= place(kScalesPlace) | place(kStream);
              if (product.epilogue == k::Epilogue::kAdd) access.reads |= place(product.out);
              if (product.epilogue == k::Epilogue::kQkv) {
                access.writes |= place(kQPlace) | place(kKvPlace);
                continue;
              }
              access.writes |= place(product.out) | next_input_of(product.operands);
            }
            return access;
          },
          [](const SliceProductStep& s) {
            return Access{place(s.product.in), place(s.product.out)};
          },
          [](const GateStep& s) {
            return Access{place(s.gate) | (s.up != kAbsent ? place(s.up) : 0), place(s.out)};
          },
          [](const RouteStep& s) {
            return Access{place(kStream),
                          place(s.routes) | (s.makes_scales ? place(kScalesPlace) : 0)};
          },
          [](const ExpertProductsStep& s) {
            Access access{place(s.routes), 0};
            for (const ProductStep& product : s.products) {
              access.reads |= place(product.in);
              if (product.scaled) access.reads |= place(kScalesPlace);
              access.writes |= place(product.out);
            }
            return access;
          },
          [&](const MixStep& s) {
            Access access{place(s.routes) | place(s.down.in), place(s.down.out) | place(s.out)};
            if (s.shared != kAbsent) access.reads |= place(s.shared);
            if (s.out != kStream) return access;
            access.reads |= place(kStream);
            access.writes |= next_input_of(s.operands);
            return access;
          },
          [](const DeltaStep& s) {
            const Places own = place(s.convolved) | place(s.read) | place(kKvPlace);
            return Access{place(s.net.in) | own, place(s.net.out) | own};
          },
      },
      step);
}

}  // namespace bulkhead::forward
