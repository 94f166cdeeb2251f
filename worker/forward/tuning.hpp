// Chooses among the bit-equal variants of a product's kernel: how many rows a workgroup or a subgroup
// takes, how wide a workgroup is, how far a loop is unrolled. The kernel's own choice is the default. A
// file, one for each device and driver, keeps the variants that were measured to be faster. No choice
// changes a bit of any result (gpu/kernels/kernels.hpp), so neither a measurement nor a lost file can
// change a token.
//
// A product is identified by its weights' type and shape and by the widest step that it serves. Whole
// steps are timed, since a choice must make these faster; the caller makes and times them.
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

// The first is the default. All of them cover what they say they cover, and are equal bit for bit.
std::vector<gpu::kernels::MatvecVariant> product_variants(const gpu::kernels::Mapping& mapping,
                                                          const gpu::kernels::MatvecShape& shape,
                                                          std::uint32_t columns,
                                                          bool in_chain = false);

class Tuning {
 public:
  // Reads what is known. Whatever is wrong with the file is worth a warning, and nothing is known,
  // then. `path` empty: nothing is read or kept.
  Tuning(gpu::kernels::Mapping mapping, std::string path);

  // The chosen variant, and from then on the product is one of the tuned step's.
  gpu::kernels::MatvecVariant matvec(const gpu::kernels::MatvecShape& shape, std::uint32_t columns,
                                     bool in_chain = false);
  // Of products asked for so far that were never measured: every variant's kernel.
  std::vector<gpu::KernelSpec> unmeasured() const;

  // The time of a step of so many columns with the choices as they are, made anew, in microseconds.
  using Measure = std::function<Result<double>(std::uint32_t columns)>;
  // Tries the variants of products that were never measured, one product after another, narrow steps
  // first, until `budget_ms` are over: the rest is for the next time. A variant must be faster by
  // kWorthIt twice, the second time right behind the default, to be taken. Keeps what it found. The
  // caller makes its steps anew afterwards.
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
