// What Python asks the library for outside of torch's operators: plain C functions, called through ctypes.
#include <cstdint>

#include "tilewise/kv_format.h"

#define TW_PYTHON_API extern "C" __attribute__((visibility("default")))

namespace {

tilewise::Record record_of(const char* name) {
  return tilewise::record_from_name(name).value_or(tilewise::Record::kAuto);
}

}  // namespace

TW_PYTHON_API const char* tilewise_torch_version() { return TILEWISE_VERSION; }

/// Null past the last record.
TW_PYTHON_API const char* tilewise_torch_record_name(int index) {
  const auto records = tilewise::all_records();
  const auto i = static_cast<size_t>(index);
  return i < records.size() ? tilewise::record_name(records[i]) : nullptr;
}

TW_PYTHON_API int64_t tilewise_torch_record_dim(const char* record) {
  return tilewise::record_dim(record_of(record));
}

TW_PYTHON_API int64_t tilewise_torch_record_bytes(const char* record, int64_t d) {
  return tilewise::record_bytes(record_of(record), d);
}
