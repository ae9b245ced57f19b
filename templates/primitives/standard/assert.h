// assert is a built-in.
#pragma once
