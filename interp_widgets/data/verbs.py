"""English verbs: those that instructions ask with, and common ones to hold them against."""

from __future__ import annotations

_ASKING = """
write create classify give tell find make explain describe summarize translate generate list name answer compare
rewrite edit correct complete convert identify analyze suggest design compose extract predict evaluate solve
calculate rank sort organize provide choose select fill turn say count repeat reverse paraphrase outline
"""

INSTRUCTION_VERBS: tuple[str, ...] = tuple(_ASKING.split())
"""45 verbs that instructions to language models are written with."""

_COMMON = """
be have do go get know think take see come want look use work call try ask need feel become leave put mean keep let
begin seem help talk start show hear play run move like live believe hold bring happen sit stand lose pay meet include
continue set learn change lead understand watch follow stop speak read allow add spend grow open walk win offer remember
love consider appear buy wait serve die send expect build stay fall cut reach kill remain raise pass sell require report
decide pull return hope develop carry break receive agree support hit eat cover catch draw throw produce point teach
drop drive enjoy ride fly wear rise save protect push laugh visit wash clean cook sing dance paint swim sleep drink
study smile jump close carry arrive travel finish enter share fight forget prepare improve reduce remove prove attack
treat kiss hide touch forgive invite join knock lift marry miss mix order pick plan press print promise pour pray
refuse regret rely rent repair reply rescue rest ring rob roll rush sail search shake shine shoot shout shut sign sink
slip smell spread steal step stick strike succeed suffer supply suppose surprise surround survive swear sweep tear thank
tie trust vote wake warn waste weigh whisper wish wonder worry wrap yell accept admire admit advise afford announce
apply argue arrange attend avoid bake balance bark beg behave belong bend bet bind bite blame bleed bless blow boil
borrow bounce bow breathe brush burn bury camp celebrate chase cheat cheer chew claim clap climb collect comb command
compete complain confess connect contain copy cough crash crawl cross cry damage deal decorate defend delay deliver
demand deny depend deserve destroy dig disagree discover dislike divide doubt drag dream dress drown dry earn employ
empty encourage escape examine exist explode face fear feed fetch fix float flow fold freeze frighten gather grab greet
guess guide hang hate heal hunt hurry hurt imagine injure intend introduce invent jog judge justify kick kneel knit land
last lay lean lend lick lie light listen load lock manage march mark match measure melt mend move nod notice obey
observe obtain occur offend own pack park perform phone place plant please possess practise prefer pretend prevent
program pump punish question race rain realize recognize record reflect reject relax release remind replace retire
rule scare scream seal seek settle sew shave slide smoke sneeze snow soak spell spill spin spit split spoil stare stir
stretch sting strip stroke taste tease telephone tempt test tick tidy tour trade train trap tremble trick trip trot
twist type unite unlock upset vanish wander water whistle wink wipe wrestle yawn zoom
"""

GENERAL_VERBS: tuple[str, ...] = tuple(dict.fromkeys(_COMMON.split()))
"""Common verbs, none of them in `INSTRUCTION_VERBS`."""
