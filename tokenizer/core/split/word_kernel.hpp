// Cutting a text into words 64 bytes at a time, and looking them up; kernels.cpp includes this once for each
// set of instructions.
//
//   bytes    ' l o o k \n \n     x = 1 ...      64 of them, from the start of a word
//   masks    letter .1111..........1...         one bit a byte, a character's bytes all alike
//   starts   1....1.......11.1 ...              where words begin, by shifts, carries and no branches
//
//   A block begins where a word begins, so nothing before it matters. The end of its last run of characters of one
//   class is not known before the next block, which therefore begins at the last certain start at or
//   before that run. A word that fills a block, or that a family's notes leave open, goes to the pattern's
//   table, which is always right.
//
//   Why the starts of the families are these (S: \s, R: [\r\n], ' ': blank):
//   - a run of L, N or O starts a word, except where a character before it belongs to it: a blank; before
//     letters (prefixed, cased) also any S but R, or one O that is itself a start
//   - a run of S gives its last character to the next word: \s+(?!\S) stops before it. So it starts a word,
//     unless it is R and \s*[\r\n]+ took it
//   - \s*[\r\n]+ takes all up to the last R of the run: behind an R a word starts, if no R follows in the run
//   - O+[\r\n]* takes the R behind it: these start nothing, and S begins behind them
//   - cased: capitals start a word behind letters that are none, and behind letters of both cases (Han, say) that
//     follow such; behind other letters of both cases only as the last letters, since U*W+ gives back the characters
//     that W+ needs
//   - 's and the like win over O+ and over O before letters, where the apostrophe is a start; cased: they belong to
//     the letters before them, unless these are themselves such
//   - scripted: runs within C start words, letters and others apart. Spaces before C and N keep their last character.
//     Before letters only S but R belongs to them, and one O of ASCII that is itself a start, as far as the letters
//     are ASCII: the next starts a word

#include "bpe/lockstep.hpp"
#include "split/class_masks.hpp"

namespace fasttoken::FASTTOKEN_KERNEL {

// The starts within a run of numbers when at most three make a word.
static inline uint64_t by_three(uint64_t number, uint64_t inside) {
  uint64_t runs = number & ~(number << 1);
  uint64_t starts = runs;
  if (!(number & inside)) {
    uint64_t whole = number & number << 1 & number << 2;  // here and the two before are numbers, so of one run
    for (uint64_t next = starts; (next = next << 3 & whole) != 0;) starts |= next;
    return starts;
  }
  int count = 0;
  for (uint64_t leads = number & ~inside; leads; leads &= leads - 1) {
    uint64_t lead = leads & (~leads + 1);
    if (runs & lead) count = 0;
    if (count++ % 3 == 0) starts |= lead;
  }
  return starts;
}

// Each bit moved to the start of the next character.
static inline uint64_t next_character(uint64_t starts, uint64_t inside) {
  uint64_t at = starts << 1;
  if (!inside) return at;
  uint64_t out = at & ~inside;
  for (int i = 0; i < 3; ++i) {
    at = (at & inside) << 1;
    out |= at & ~inside;
  }
  return out;
}

// Each last byte of a character moved to its first.
static inline uint64_t to_lead(uint64_t last, uint64_t inside) {
  uint64_t out = last & ~inside;
  for (int i = 0; i < 3; ++i) {
    last = (last & inside) >> 1;
    out |= last & ~inside;
  }
  return out;
}

// The length of a contraction behind an apostrophe, 0 for none. Four bytes can be read.
static inline unsigned contraction(const char* p, bool folded) {
  char a = p[0], b = p[1];
  if (folded) {
    if (static_cast<unsigned char>(a) == 0xC5 && static_cast<unsigned char>(b) == 0xBF) return 2;  // U+017F
    if (a >= 'A' && a <= 'Z') a = static_cast<char>(a + 32);
    if (b >= 'A' && b <= 'Z') b = static_cast<char>(b + 32);
  }
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 2 : 0;
}

// Starts of words; `ends`: where the runs of one class begin. False: ask the table.
template <SplitFamily family>
static inline bool starts_of(const char* p, size_t left, const SplitPlan& plan, const Masks& m, uint64_t valid,
                             uint64_t& starts, uint64_t& runs) {
  const uint64_t inside = m.inside, letter = m.letter, number = m.number, space = m.space;
  constexpr bool scripted = family == SplitFamily::scripted;
  const uint64_t script = scripted ? m.upper : 0, script_letter = script & ~m.special,
                 script_other = script & m.special;
  if (scripted && ((m.special & ~script) | (m.quote & valid))) return false;  // in no set
  const uint64_t other = ~(letter | number | space | script) & valid;
  const uint64_t letters = letter & ~(letter << 1), others = other & ~(other << 1), numbers = number & ~(number << 1);
  const uint64_t spaces = space & ~(space << 1);
  runs = letters | others | numbers | spaces;
  const uint64_t scripts = (script_letter & ~(script_letter << 1)) | (script_other & ~(script_other << 1));
  if (scripted) runs |= scripts;
  const uint64_t behind_blank = m.blank << 1;

  uint64_t word_other = others & ~behind_blank, word_letter, word_space;
  if constexpr (family == SplitFamily::gpt2) {
    word_letter = letters & ~behind_blank;
    word_space = spaces | to_lead(space & ~(space >> 1) & valid >> 1, inside);
  } else {
    uint64_t free = space;
    if constexpr (family == SplitFamily::cased) {
      if (m.special & ~letter) return false;  // a mark
      // Letters of both cases beside capitals, where a contraction may begin anew among them.
      if (plan.contractions && m.special && m.upper && (mask_of(p, '\'') & valid & letter << 1)) return false;
      if (m.newline & m.quote >> 1) return false;  // R before '/': taken or not, by the character before
    }
    if (!plan.trail.empty()) free &= ~(m.newline & ~(m.newline + (m.newline & other << 1)));
    const uint64_t tail = free & ~m.newline;
    uint64_t after_line = tail & ~(tail << 1) & (m.newline & free) << 1;
    // Runs of spaces behind R and before R again: \s*[\r\n]+ takes them.
    uint64_t ended = ((tail + after_line) & ~tail) & m.newline;
    for (; ended; ended &= ended - 1) {
      uint64_t below = after_line & ((ended & (~ended + 1)) - 1);
      after_line &= ~(uint64_t{1} << (63 - std::countl_zero(below)));
    }
    uint64_t given = tail & ~(space >> 1) & valid >> 1;
    if (scripted) given &= ~((number | script) >> 1);
    word_space = (free & ~(free << 1)) | after_line | to_lead(given, inside);
    if (scripted) {
      const uint64_t plain = letter & ~m.high, joined = letters & plain & (word_other & ~m.high) << 1;
      word_letter = (letters & ~(tail << 1) & ~joined) | scripts;
      word_letter |= (plain + joined) & ~plain & letter;
    } else {
      word_letter = letters & ~(tail << 1) & ~next_character(word_other, inside);
    }
    if constexpr (family == SplitFamily::cased) {
      const uint64_t both = m.special, capitals = m.upper & ~(m.upper << 1);
      uint64_t low = letter & ~m.upper & ~both;
      low |= both & ~(both + (both & low << 1));
      word_letter |= capitals & low << 1;
      for (uint64_t at = capitals & (both & ~low) << 1; at; at &= at - 1) {
        unsigned i = static_cast<unsigned>(std::countr_zero(at));
        unsigned end = i + static_cast<unsigned>(std::countr_one(m.upper >> i));
        if (end >= 64 || !(letter >> end & 1)) word_letter |= uint64_t{1} << i;
      }
    }
  }
  uint64_t word_number = plan.digits == 1   ? number & ~inside
                         : plan.digits == 3 ? by_three(number, inside)
                                            : numbers & ~behind_blank;
  if (plan.digits) runs |= word_number;  // certain also within a run
  starts = word_other | word_letter | word_space | word_number;
  if (family != SplitFamily::cased && plan.contractions) {
    for (uint64_t at = m.quote & word_other & letter >> 1; at; at &= at - 1) {
      unsigned i = static_cast<unsigned>(std::countr_zero(at));
      unsigned n = contraction(p + i + 1, family == SplitFamily::prefixed);
      if (n == 0 || i + n >= left) continue;
      starts &= ~(uint64_t{2} << i);
      unsigned end = i + 1 + n;
      if (end < 64 && (letter >> end & 1)) starts |= uint64_t{1} << end;
    }
  }
  if (family == SplitFamily::cased && plan.contractions) {
    unsigned last = 0;  // where the last one ended: letters that are one have none
    for (uint64_t at = mask_of(p, '\'') & valid & letter << 1; at; at &= at - 1) {
      unsigned i = static_cast<unsigned>(std::countr_zero(at));
      unsigned n = i == last ? 0 : contraction(p + i + 1, true);
      if (n == 0 || i + n >= left) continue;
      last = i + 1 + n;
      starts &= ~(((uint64_t{2} << n) - 1) << i);
      if (last < 64 && (letter >> last & 1)) starts |= uint64_t{1} << last;
    }
  }
  return true;
}

// The next word by the pattern's table; past it.
[[gnu::noinline]] static const char* one_by_table(const SplitPlan& plan, const char* p, const char* end,
                                                  WordWriter& out) {
  size_t looked = 0, n;
  if (plan.table) {
    n = plan.table->match({p, static_cast<size_t>(end - p)}, 0, looked);
  } else {  // spaced
    n = plan.first_word({p, static_cast<size_t>(end - p)});
  }
  out.any(p, n);
  return p + n;
}

// Whether a word that its first line does not have may be in its second, and where that is.
static inline bool in_full_line(const FoundWords& found, const WordTable::Probe& table, size_t i) {
  const uint32_t is_short = found.size(i) <= WordTable::longest;  // a longer one may have no line
  return is_short & table.lines[found.line[i] & (0 - is_short)].full();
}
static inline WordTable::Place second_place(const FoundWords& found, const WordTable::Probe& table, size_t i) {
  return table.second({found.low[i], found.rest[i], found.line[i], found.size(i) > 7});
}

// All words found, of which the last ends at `end`; 16 bytes can be read from where each starts.
[[gnu::noinline]] static void put_all(FoundWords& found, const char* end, const WordTable::Probe& table,
                                      WordWriter& out) {
  const size_t n = found.count;
  const char* const base = found.base;
  found.at[n] = static_cast<uint32_t>(end - base);
  place_words(found, table);
  find_words(found, table);
  found.put_stops();
  out.room(found.at[n] - found.at[0]);
  size_t done = 0;
  auto put_known = [&](size_t until) {
    constexpr size_t run = 8;
    int32_t* at = out.out;
    size_t i = done;
    do  // once, also where there are none: most have fewer than a run, and no branch asks how many
      std::memcpy(at + (i - done), found.ids + i, run * sizeof *at);
    while ((i += run) < until);
    out.out = at + (until - done);
    done = until + 1;
  };
  uint32_t not_known[FoundWords::most + 1];
  constexpr size_t most = 256;
  const size_t all = not_found(found, not_known);
  for (size_t from = 0; from < all; from += most) {
    const uint32_t* const missing = not_known + from;
    const size_t missed = std::min(most, all - from);
    WordWriter::Missing words[most];
    uint32_t twice[most + 1];  // those that may be in their second line
    size_t full = 0;
    for (size_t k = 0; k < missed; ++k) {
      const size_t i = missing[k];
      out.fetch(words[k], base + found.at[i], found.size(i));
      twice[full] = static_cast<uint32_t>(i);
      full += in_full_line(found, table, i);
    }
    for (size_t k = 0; k < full; ++k) table.fetch(second_place(found, table, twice[k]).line);
    for (size_t k = 0; k < full; ++k)
      found.ids[twice[k]] = static_cast<int32_t>(table.find_in(second_place(found, table, twice[k])));
    for (size_t k = 0; k < missed; ++k) {
      const size_t i = missing[k];
      words[k].way = WordWriter::Way::table;
      if (found.ids[i] >= 0) continue;
      words[k].way = WordWriter::Way::alone;
      out.look_up(words[k]);
    }
    out.start(words, missed);
    for (size_t k = 0; k < missed; ++k)
      if (words[k].way != WordWriter::Way::table) out.find(words[k]);
    out.match();
    if (out.batch().size()) merge_batch(out.merges(), out.batch());
    for (size_t k = 0; k < missed; ++k) {
      if (words[k].way == WordWriter::Way::table) continue;
      put_known(missing[k]);
      out.put(words[k]);
    }
  }
  put_known(n);
  found.count = 0;
}

// Of these places, those between two characters that no token has side by side.
[[gnu::noinline]] static uint64_t cuts_of(const char* p, const WideJoins& joins, uint64_t places) {
  const uint64_t wide =
      between(p, WideJoins::lead_from, WideJoins::lead_to) | mask_of(p, static_cast<char>(WideJoins::lead_apart));
  uint64_t cuts = 0;
  for (uint64_t at = places & wide & wide << 3; at; at &= at - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(at));
    cuts |= uint64_t{!joins.join(p + i - 3)} << i;
  }
  return cuts;
}

// Finds the starts of words in 64 bytes. beyond: the bytes beyond ASCII. False: ask the table.
template <SplitFamily family>
static inline bool find_starts(const SplitPlan& plan, const char* p, size_t left, uint64_t valid, uint64_t& starts,
                               uint64_t& runs, uint64_t& beyond) {
  if constexpr (family == SplitFamily::spaced) {
    beyond = high(load(p)) & valid;
    starts = ~joined(p, *plan.joins, beyond) & valid;
    if (plan.each_space) starts |= mask_of(p, ' ') & valid;
    runs = starts |= 1;
    return true;
  } else {
    Masks m{};
    masks_of(p, plan.classes, m);
    if (left < 64) m.only(valid);
    beyond = m.high & valid;
    constexpr bool cased = family == SplitFamily::cased || family == SplitFamily::scripted;
    if (beyond) add_others<cased>(p, plan.classes, valid, m);
    if (!starts_of<family>(p, left, plan, m, valid, starts, runs)) return false;
    if constexpr (family == SplitFamily::gpt2 || family == SplitFamily::prefixed) {
      if (beyond && plan.wide) {
        const uint64_t cuts = cuts_of(p, *plan.wide, m.letter & valid & ~starts);
        starts |= cuts;
        runs |= cuts;  // a block may begin there: what is before a letter does not matter
      }
    }
    return true;
  }
}

template <SplitFamily family>
static void cut(const SplitPlan& plan, std::string_view text, const char* readable, std::span<const Stop> stops,
                WordWriter& out) {
  const char *p = text.data(), *all_end = p + text.size();
  const WordTable::Probe table = out.table.probe();
  FoundWords found;
  found.base = p;
  auto put_found = [&] {
    if (found.count) put_all(found, p, table, out);
  };
  constexpr size_t block = 64, margin = 16;
  char copy[block + 2 * margin + block];
  bool copied = false;
  size_t before = 0;  // how much of the text lies before found.base
  auto place_of = [&](uint32_t at) { return found.base + (at - before); };
  const Stop* stop = stops.data();
  const char* end;  // of the text before the next stop
  auto set_end = [&] { end = stop != stops.data() + stops.size() ? place_of(stop->begin) : all_end; };
  // Near the end of the readable bytes, from p on in a copy, so that reads may go past it.
  auto keep_readable = [&] {
    if (static_cast<size_t>(readable - p) >= block + margin || copied) return;
    put_found();
    const size_t rest = static_cast<size_t>(all_end - p);
    before += static_cast<size_t>(p - found.base);
    std::memset(copy, 0, sizeof copy);  // of a constant size: a few stores
    std::memcpy(copy, p, rest);
    found.base = p = copy;
    all_end = copy + rest;
    readable = copy + sizeof copy;
    copied = true;
    set_end();
  };
  for (;; ++stop) {
    set_end();
    while (p < end) {
      keep_readable();
      size_t left = static_cast<size_t>(end - p);
      bool last = left <= block;
      uint64_t valid = left >= block ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
      uint64_t starts, runs, beyond;
      if (!find_starts<family>(plan, p, left, valid, starts, runs, beyond)) {
        put_found();
        out.room(left);
        for (const char* until = p + std::min(left, block); p < until;) p = one_by_table(plan, p, end, out);
        continue;
      }
      starts |= 1;
      const char* next = end;
      if (!last) {
        starts &= (uint64_t{2} << (63 - std::countl_zero(runs))) - 1;
        const int from = 63 - std::countl_zero(starts);  // the next block
        if (from == 0) {
          put_found();
          p = one_by_table(plan, p, end, out);
          continue;
        }
        starts ^= uint64_t{1} << from;
        next = p + from;
      }
      put_places(starts, static_cast<uint32_t>(p - found.base), found.at + found.count);
      found.count += static_cast<size_t>(std::popcount(starts));
      p = next;
      const bool wide = std::popcount(beyond) > 24;
      if (found.count >= (wide ? FoundWords::enough_wide : FoundWords::enough)) put_found();
    }
    if (stop == stops.data() + stops.size()) break;
    keep_readable();
    const char* const past = place_of(stop->end);
    if (static_cast<size_t>(readable - past) < margin) {  // put_found() reads so many bytes behind the last word
      put_found();
      out.room(1);
      *out.out++ = stop->id;
    } else {
      found.add_stop(static_cast<uint32_t>(p - found.base), stop->id);
    }
    p = past;
    if (found.count >= FoundWords::enough) put_found();
  }
  put_found();
}

static void cut_any(const SplitPlan& plan, std::string_view text, const char* readable, std::span<const Stop> stops,
                    WordWriter& out) {
  using enum SplitFamily;
  static constexpr CutWords cuts[] = {nullptr, cut<gpt2>, cut<prefixed>, cut<cased>, cut<scripted>, cut<spaced>};
  cuts[static_cast<size_t>(plan.family)](plan, text, readable, stops, out);
}

static constexpr Kernels kernels{cut_any, dirty_of, merge_batch};

}  // namespace fasttoken::FASTTOKEN_KERNEL

#undef FASTTOKEN_KERNEL
#undef FASTTOKEN_LEVEL
