// Mixtures of experts from C++: the router's kernels, the products of experts' matrices, and the kernel that combines
// their results. The kernels of a step pass their choices (routes) to each other in one piece of device memory
// (RouteLayout).
//
//   route    logits[column][expert], in float32 from the residual stream
//   choose   each column's experts and weights, and the tiles of columns that take the same expert
//   matvec   gates and ups, then downs: with expert_product(), a product's workgroups work on tiles
//   mix      the weighted sum of a column's results; with one column expert_sum() makes it with the downs
//
// Results are stored by pairs (column * used + place). Every sum adds experts in rising order of place, so a column's
// bits do not depend on other columns that use the same experts.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

constexpr std::uint32_t kMostExperts = 512;
constexpr std::uint32_t kMostUsedExperts = 32;
constexpr std::uint32_t kMostExpertGroups = 32;

struct RouterShape {
  std::uint32_t experts = 0;  // at most kMostExperts
  std::uint32_t used = 0;     // per column; at most kMostUsedExperts
  bool shared_gate = false;   // one more row is the gate of an expert that all columns use
  bool renormalise = false;   // weights are divided by the sum of the chosen experts' scores
  bool sigmoid = false;       // scores are sigmoids instead of a softmax
  // A column's experts are chosen by score plus ChoosePush::choice_bias instead of by logit. Routers with sigmoids or
  // with groups choose by score, too. (A group is a set of neighbouring experts; a column uses experts of some groups
  // only.)
  bool biased_choice = false;
  std::uint32_t groups = 1, groups_used = 1;  // at most kMostExpertGroups

  bool norms = true;  // the router normalises the stream; otherwise it reads the stream as it is

  std::uint32_t rows() const { return experts + (shared_gate ? 1 : 0); }
  std::uint32_t weights() const { return used + (shared_gate ? 1 : 0); }
};

// The byte offsets of the parts of a step's routes, for a number of columns.
struct RouteLayout {
  std::uint64_t tiles = 0;    // their count; from byte 16 on {expert, first place, places, first pair}
  std::uint64_t list = 0;     // [pair]: the pairs, sorted by expert
  std::uint64_t chosen = 0;   // [pair]: the pair's expert
  std::uint64_t weights = 0;  // [column][weights()]
  std::uint64_t logits = 0;   // [column][rows()]
  std::uint64_t bytes = 0;
};
RouteLayout route_layout(const RouterShape& router, std::uint32_t columns);
// Returns the words per column that suffice for any number of columns.
std::uint32_t route_words(const RouterShape& router);

static_assert(sizeof(RoutePush) == 72);
struct RouteVariant {
  KernelSpec spec;
  std::uint32_t columns_per_workgroup = 1;
  std::uint32_t rows_per_workgroup = 1;
};
RouteVariant route(const Mapping& mapping, const RouterShape& router, std::uint32_t columns);

static_assert(sizeof(ChoosePush) == 72);
struct ChooseVariant {
  KernelSpec spec;
  std::uint32_t workgroups = 1;
};
ChooseVariant choose(const Mapping& mapping, const RouterShape& router, ChoosePart part,
                     std::uint32_t columns, std::uint32_t tile_columns);
// Returns whether one workgroup makes all choices for a step of `columns` columns.
bool chooses_at_once(const Mapping& mapping, std::uint32_t columns);

struct ExpertPush {
  MatvecPush product;
#include "gpu/kernels/fields/expert_push.glsl"
};
static_assert(sizeof(ExpertPush) == 104);
// Returns the columns of a tile in steps of `columns` columns. Both products of a router's experts use the same
// tiles.
std::uint32_t expert_tile(const Mapping& mapping, const RouterShape& router, std::uint32_t columns);
// Returns the largest number of tiles that a step can have.
std::uint32_t most_tiles(const RouterShape& router, std::uint32_t columns,
                         std::uint32_t tile_columns);
// Makes a product with a workgroup for each tile and block of rows. `shape.rows` is the number of results of one
// expert, whose matrix is like that of an ordinary product of the shape. `share` is the number of results that read
// the same column of the input: `used`, or 1.
MatvecVariant expert_product(const Mapping& mapping, const MatvecShape& shape,
                             const RouterShape& router, std::uint32_t share, std::uint32_t columns);
// Returns whether the products that read a single column's input choose its experts themselves (choose_here.glsl).
// Such products need only the router's logits, so a step then runs no choose() after route().
bool chooses_in_products(const Mapping& mapping, const RouterShape& router, bool expert_scales,
                         std::uint32_t columns);
// `scale` multiplies all weights (ChoosePush::scale). One product of a step writes its choice for the others.
void choose_in_product(MatvecVariant& variant, const RouterShape& router, float scale,
                       ChoosesHere chooses);
// Returns whether one kernel computes the downs of a step's experts and adds them up (expert_sum.glsl): if the step has
// one column, and a down's rows are short. `shape` is that of expert_product().
bool sums_experts(const Mapping& mapping, const MatvecShape& shape, const RouterShape& router,
                  std::uint32_t columns);
// Makes that kernel, with a workgroup for each block of rows. It takes ExpertPush and adds the sum to the floats at
// `out_address`; `fused` has the next norm's gain, as for Epilogue::kAdd. The kernel chooses the experts itself or
// reads the route (kByRoute), and it does not write its choice.
MatvecVariant expert_sum(const MatvecShape& shape, const RouterShape& router, float scale,
                         ChoosesHere chooses);
// The product of `slices` matrices that every column uses: slice s multiplies the column's s-th input and gives its
// s-th result. Used for attention heads that have a matrix each. The kernel ignores ExpertPush::tiles and list.
struct SliceProduct {
  MatvecVariant variant;
  std::uint32_t workgroups = 1;  // multiplied by the workgroups that the rows need
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
