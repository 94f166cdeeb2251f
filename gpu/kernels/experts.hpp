// Mixtures of experts from C++: the router's kernels, products of experts' matrices, and what puts
// their results together. A step's routes, what these kernels tell each other, lie in one piece of
// device memory (RouteLayout).
//
//   route    logits[column][expert], in float32 from the residual stream
//   choose   each column's experts and weights, and the tiles of columns that take the same expert
//   matvec   gates and ups, then downs: with expert_product() a product's workgroups take tiles
//   mix      the sum of a column's results by their weights
//
// Results lie by pairs: column * used + place. Experts are taken in rising order of place wherever
// anything is summed, so a column's bits depend on nobody who shares its experts.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

constexpr std::uint32_t kMostExperts = 512;
constexpr std::uint32_t kMostUsedExperts = 32;
constexpr std::uint32_t kMostExpertGroups = 32;

struct RouterShape {
  std::uint32_t experts = 0;  // at most kMostExperts
  std::uint32_t used = 0;     // of a column; at most kMostUsedExperts
  bool shared_gate = false;   // a further row is the gate of an expert that all columns take
  bool renormalise = false;   // weights are shares of the chosen experts' sum
  bool sigmoid = false;       // scores are sigmoids, not a softmax
  // Experts are chosen by their scores plus ChoosePush::choice_bias, not by their logits; so they are with
  // sigmoids and with groups, too: of neighbouring experts, of which a column takes some.
  bool biased_choice = false;
  std::uint32_t groups = 1, groups_used = 1;  // at most kMostExpertGroups

  std::uint32_t rows() const { return experts + (shared_gate ? 1 : 0); }
  std::uint32_t weights() const { return used + (shared_gate ? 1 : 0); }
};

// Where the parts of a step's routes lie, in bytes, for so many columns.
struct RouteLayout {
  std::uint64_t tiles = 0;    // how many; from byte 16 on {expert, first place, places, first pair}
  std::uint64_t list = 0;     // [pair]: pairs, by expert
  std::uint64_t chosen = 0;   // [pair]: its expert
  std::uint64_t weights = 0;  // [column][weights()]
  std::uint64_t logits = 0;   // [column][rows()]
  std::uint64_t bytes = 0;
};
RouteLayout route_layout(const RouterShape& router, std::uint32_t columns);
// Words of each column with which there is room for any number of columns.
std::uint32_t route_words(const RouterShape& router);

static_assert(sizeof(RoutePush) == 72);
struct RouteVariant {
  KernelSpec spec;
  std::uint32_t columns_per_workgroup = 1;
  std::uint32_t rows_per_workgroup = 1;
};
RouteVariant route(const Mapping& mapping, std::uint32_t columns);

static_assert(sizeof(ChoosePush) == 72);
struct ChooseVariant {
  KernelSpec spec;
  std::uint32_t workgroups = 1;
};
ChooseVariant choose(const Mapping& mapping, const RouterShape& router, ChoosePart part,
                     std::uint32_t columns, std::uint32_t tile_columns);
// Whether one workgroup does all for so many columns.
bool chooses_at_once(const Mapping& mapping, std::uint32_t columns);

struct ExpertPush {
  MatvecPush product;
#include "gpu/kernels/fields/expert_push.glsl"
};
static_assert(sizeof(ExpertPush) == 104);
// Columns of a tile in steps of so many; both products of a router's experts take the same.
std::uint32_t expert_tile(const Mapping& mapping, const RouterShape& router, std::uint32_t columns);
// Tiles that there may be.
std::uint32_t most_tiles(const RouterShape& router, std::uint32_t columns,
                         std::uint32_t tile_columns);
// A workgroup for each tile and block of rows. `shape.rows`: results of one expert; its matrix is
// that of a product of the shape. `share`: results that share a column of the input: `used`, or 1.
MatvecVariant expert_product(const Mapping& mapping, const MatvecShape& shape,
                             const RouterShape& router, std::uint32_t share, std::uint32_t columns);
// Says whether the products that read a single column's input choose its experts by themselves (choose_here.glsl).
// Such products need only the router's logits, so a step runs no choose() after route().
bool chooses_in_products(const Mapping& mapping, const RouterShape& router, bool expert_scales,
                         std::uint32_t columns);
// `scale` multiplies all weights (ChoosePush::scale). One product of a step writes what it has chosen, for the
// others.
void choose_in_product(MatvecVariant& variant, const RouterShape& router, float scale,
                       ChoosesHere chooses);
// The product of `slices` matrices that every column takes: slice s multiplies the column's s-th input and gives
// its s-th result. Attention heads that have a matrix each use it. The kernel ignores ExpertPush::tiles and list.
struct SliceProduct {
  MatvecVariant variant;
  std::uint32_t workgroups = 1;  // times those that rows need
};
SliceProduct slice_product(const Mapping& mapping, const MatvecShape& shape, std::uint32_t slices,
                           std::uint32_t columns);

static_assert(sizeof(MixPush) == 80);
struct MixVariant {
  KernelSpec spec;
  std::uint32_t entries_per_workgroup = 1;
};
MixVariant mix(const Mapping& mapping, const RouterShape& router, bool adds);

}  // namespace bulkhead::gpu::kernels
