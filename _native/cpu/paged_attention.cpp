#include "prelude/paged_attention.hpp"

namespace prelude::paged {

template void attend<float>(const Rows&, const Pool&, const Queries&, int, float*);
template void attend<uint16_t>(const Rows&, const Pool&, const Queries&, int, float*);

}  // namespace prelude::paged
