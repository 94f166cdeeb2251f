// Chooses among variants of a product's kernel that give the same bits: how many rows a workgroup or a subgroup
// takes, how wide a workgroup is, how far a loop is unrolled. The default is the kernel's own choice. A file for each
// device and driver keeps the variants that were measured to be faster. No choice changes a bit of any result
// (gpu/kernels/kernels.hpp), so neither a measurement nor a lost file can change a token.
//
// A product is identified by its weights' type and shape and by the widest step that it serves. Whole steps are
// timed, because a choice must make whole steps faster; the caller makes and times them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::forward {

// Returns the variants; the first is the default. All of them support the same columns, types and shapes, and give
// the same bits.
std::vector<gpu::kernels::MatvecVariant> product_variants(const gpu::kernels::Mapping& mapping,
                                                          const gpu::kernels::MatvecShape& shape,
                                                          std::uint32_t columns,
                                                          bool in_chain = false);

class Tuning {
 public:
  // Reads the file. If anything is wrong with it, a warning is logged, and no results are known. If `path` is empty,
  // nothing is read or written.
  Tuning(gpu::kernels::Mapping mapping, std::string path);

  // Returns the chosen variant; from then on the product belongs to the step that is tuned.
  gpu::kernels::MatvecVariant matvec(const gpu::kernels::MatvecShape& shape, std::uint32_t columns,
                                     bool in_chain = false);
  // Returns the kernels of all variants, for the products asked for so far that were never measured.
  std::vector<gpu::KernelSpec> unmeasured() const;

  // Makes a step of this many columns with the present choices, and returns its time in microseconds.
  using Measure = std::function<Result<double>(std::uint32_t columns)>;
  // Tries the variants of products that were never measured, one product after another, narrow steps first, for at
  // most `budget_ms`; the rest is left for the next time. A variant is chosen only if it is faster by kWorthIt twice,
  // the second time right after the default. Saves the results. The caller must make its steps again afterwards.
  Status run(const Measure& measure, std::uint32_t budget_ms);

  // For tests: variant `index` (of as many as there are) of every product asked for so far.
  void choose_all(std::size_t index);
  Status save() const;
  std::size_t measured() const;
  std::size_t products() const { return products_.size(); }

 private:
  struct Entry {
    gpu::kernels::MatvecShape shape;
    std::uint32_t columns = 0;
    bool in_chain = false;
    std::uint32_t chosen = 0;
    bool measured = false;
  };
  // By columns, then by what else makes the product.
  using Key = std::pair<std::uint32_t, std::string>;
  void read();

  gpu::kernels::Mapping mapping_;
  std::string path_;
  std::map<Key, Entry> products_;  // of this model
  struct Known {
    std::uint32_t variants = 0, chosen = 0;
  };
  std::map<Key, Known> known_;  // of the file: other models' products, too
};

// "<folder>/tuning-<vendor>-<device>-<driver uuid>.txt"; empty for no folder.
std::string tuning_path(const std::string& cache_folder, const gpu::DeviceInfo& info);

}  // namespace bulkhead::forward
