// The memory of one call, kept for the thread's next one.
#pragma once

#include <string>
#include <vector>

#include "bpe/bpe.hpp"
#include "memory/id_buffer.hpp"
#include "memory/scratch_vector.hpp"
#include "split/kernels.hpp"
#include "split/pretokenizers.hpp"
#include "text/growth.hpp"
#include "text/text.hpp"
#include "vocab/unigram.hpp"
#include "vocab/wordpiece.hpp"

namespace fasttoken {

struct Scratch {
  Growth growth;  // of text and part
  Text text, part;
  PreTokenizer::Scratch pre;
  BpeScratch bpe;
  UnigramScratch unigram;
  std::vector<Token> tokens;
  RegexScratch& regex() { return pre.normalizer.regex; }  // one for all of a call: it counts the time of matchers
  ScratchVector<char> utf8;                               // of the text
  IdBuffer ids;
  std::vector<Stop> stops;
  std::string first_word, word;
  const char* readable = nullptr;  // the end of the text whose parts are encoded
  bool ascii = false;              // whether the text is known to be no more
  bool rewritten = false;          // whether ids were made of anything but the text as it is
};

}  // namespace fasttoken
