// A string as JSON.
#pragma once

#include <string>
#include <string_view>

namespace fasttoken {

inline void write_json_string(std::string& out, std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out.append("\\u00").append(1, hex[c >> 4]).append(1, hex[c & 15]);
        else
          out += c;
    }
  }
  out += '"';
}

}  // namespace fasttoken
