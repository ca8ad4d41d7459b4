// Everything that the C++ library offers, but for DLPack views (tilewise/dlpack.h) and case files
// (tilewise/case_file.h).
#pragma once

#include "tilewise/device.h"
#include "tilewise/error.h"
#include "tilewise/kv_format.h"
#include "tilewise/mask.h"
#include "tilewise/ops/block_sparse_prefill.h"
#include "tilewise/ops/combine.h"
#include "tilewise/ops/dense_decode.h"
#include "tilewise/ops/dense_prefill.h"
#include "tilewise/ops/fused.h"
#include "tilewise/ops/kv_cache.h"
#include "tilewise/ops/sparse_decode.h"
#include "tilewise/ops/sparse_prefill.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"
