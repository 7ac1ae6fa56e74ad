import sys

from prelude.cli import main

sys.exit(main())
