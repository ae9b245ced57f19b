// Products in tensor memory that have been issued and are not complete.
#pragma once
#include "tensor_memory.h"

namespace emulator {

bool has_products(Block const& of);
void finish_any_product();  // in the running block: completes the next product, or the arrival of a commit

}  // namespace emulator
