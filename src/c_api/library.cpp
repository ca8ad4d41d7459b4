// The functions that are no operators.
#include "c_api/guard.h"
#include "tilewise/kv_format.h"

extern "C" {

const char* tilewise_last_error(void) { return tilewise::c_api::last_error(); }

const char* tilewise_version(void) { return TILEWISE_VERSION; }

size_t tilewise_num_records(void) { return tilewise::all_records().size(); }

const char* tilewise_record_name(size_t index) {
  const auto records = tilewise::all_records();
  return index < records.size() ? tilewise::record_name(records[index]) : nullptr;
}

int64_t tilewise_record_bytes(const char* record, int64_t d) {
  const auto found = record == nullptr ? std::nullopt : tilewise::record_from_name(record);
  return found ? tilewise::record_bytes(*found, d) : 0;
}

}  // extern "C"
