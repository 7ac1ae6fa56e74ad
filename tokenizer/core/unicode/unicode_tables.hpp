// The tables of unicode_tables.cpp, as make_tables.py writes them.
//
//   run_start[i] .. run_start[i+1]   code points of one record    run_record[i]   which
//   record_*                         general category, combining class, flags of a record
//   X_keys / X_index / X_flat        mapping X: keys[i] -> flat[index[i] .. index[i+1]], keys ascending
//   cut_start[i] .. cut_start[i+1]   code points that UnicodeScripts takes as one script
//   cut_value[i]                     that script's number, 0 for none
//   grapheme_start[i] .. grapheme_start[i+1]   code points with grapheme_flags[i], as graphemes.hpp names them
//   bare_word                        characters that \w matches, but not inside brackets
//   pair_*                           canonical compositions, sorted by (first, second)
#pragma once

namespace fasttoken::tables {

#define FASTTOKEN_ARRAY(type, name) \
  extern const type name[];         \
  extern const unsigned name##_size
#define FASTTOKEN_MAPPING(name)                  \
  FASTTOKEN_ARRAY(unsigned, name##_keys);        \
  FASTTOKEN_ARRAY(unsigned short, name##_index); \
  FASTTOKEN_ARRAY(unsigned, name##_flat)

FASTTOKEN_ARRAY(unsigned, run_start);
FASTTOKEN_ARRAY(unsigned short, run_record);
FASTTOKEN_ARRAY(unsigned char, record_category);
FASTTOKEN_ARRAY(unsigned char, record_class);
FASTTOKEN_ARRAY(unsigned short, record_flags);
FASTTOKEN_ARRAY(unsigned, script_start);
FASTTOKEN_ARRAY(unsigned char, script_value);
FASTTOKEN_ARRAY(char* const, script_names);
FASTTOKEN_ARRAY(unsigned, cut_start);
FASTTOKEN_ARRAY(unsigned char, cut_value);
FASTTOKEN_ARRAY(unsigned, grapheme_start);
FASTTOKEN_ARRAY(unsigned short, grapheme_flags);
FASTTOKEN_ARRAY(unsigned, bare_word);
FASTTOKEN_MAPPING(canonical);
FASTTOKEN_MAPPING(compatible);
FASTTOKEN_MAPPING(lower);
FASTTOKEN_ARRAY(unsigned, pair_first);
FASTTOKEN_ARRAY(unsigned, pair_second);
FASTTOKEN_ARRAY(unsigned, pair_result);
FASTTOKEN_MAPPING(fold);
FASTTOKEN_MAPPING(multifold);

#undef FASTTOKEN_MAPPING
#undef FASTTOKEN_ARRAY

}  // namespace fasttoken::tables
